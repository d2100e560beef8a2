"""Where one job goes on a cluster as it is."""
