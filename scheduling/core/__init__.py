"""Jobs, cluster state and cached predictions: what policies, placement and simulator share."""
