"""Beliefs of a policy about step times: measured tables, and learning from running jobs."""
