"""Labels for sets that were not measured, from which the network learns in addition to measurements."""
