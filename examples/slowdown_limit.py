"""A policy of one's own: each waiting job goes where it is predicted to run fastest, and nobody is slowed by over 30 %.

cotenant simulate --trace synthetic:rate=30,jobs=60 --cluster small-mixed --policy examples.slowdown_limit:POLICY
"""

from scheduling.core.job import Allocation
from scheduling.core.policy import Policy


def decide(snapshot, belief):
    allocations, taken = [], set()
    for job in snapshot.waiting.values():
        places = []
        for gpu, tenants in enumerate(snapshot.tenants):
            if gpu not in taken and len(tenants) < 2 and job.job.gpus == 1:  # gangs stay in the queue here
                together = [*(tenant.job.workload for tenant in tenants), job.job.workload]
                answer = belief.answer(snapshot.devices[gpu], together, snapshot.sharing[gpu])
                if answer.fits and max(answer.slowdown) <= 1.3:
                    places.append((answer.step_time_s[-1], gpu))
        if places:
            taken.add(min(places)[1])
            allocations.append(Allocation(job, (min(places)[1],)))
    return allocations


POLICY = Policy("slowdown-limit", decide)
