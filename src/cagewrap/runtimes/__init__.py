"""OCI runtimes: what each must answer, and the ones there are."""
