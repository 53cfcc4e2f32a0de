"""`python -m cagewrap`."""

from cagewrap.entry import main

if __name__ == "__main__":
    main()
