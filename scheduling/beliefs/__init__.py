"""What a policy believes of step times: measured tables, and learning from what runs."""
