"""The first Python code that the frozen program runs."""

from cagewrap.frozen import main

main()
