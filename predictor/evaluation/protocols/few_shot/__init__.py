"""Learning curves: what few observations of a new model are worth."""
