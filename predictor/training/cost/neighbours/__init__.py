"""The cost model with a graph network: an operator's neighbours correct its efficiencies."""
