"""The resource demands of a job on a device: one learned cost model used everywhere.

Per operator and pass, time = (compute^q + memory^q)^(1/q) + kernels x latency, where arithmetic and traffic
at the rates of the data sheet are divided by learned efficiencies in (0, 1]: no answer beats the data sheet,
and an unmeasured device is predicted from its own (the form of NeuSight, Lee et al., ASPLOS 2025, extended by
launches and a graph's step).
"""

from models.cost.job import JobCost
from models.cost.model import CostModel, default_cost_model

__all__ = ["CostModel", "JobCost", "default_cost_model"]
