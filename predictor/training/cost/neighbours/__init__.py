"""The cost model with a graph network: what precedes and follows an operator corrects its efficiencies."""
