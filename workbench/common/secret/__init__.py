"""Which connections know a job's secret, and which are strangers'."""
