"""Elastic jobs: ranks are lost and gained while the job runs."""
