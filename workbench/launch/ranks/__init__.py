"""The processes of a running job: supervisors, their events and output, how a job ends, who cleans up."""
