"""Who knows a job's secret, and who is a stranger."""
