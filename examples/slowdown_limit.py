"""Your own policy: each waiting job goes where it is predicted to run fastest, and no job is slowed by more than 30 %.

cotenant simulate --trace synthetic:rate=30,jobs=60 --cluster small-mixed --policy examples.slowdown_limit:POLICY
"""

from scheduling.core.job import Allocation
from scheduling.core.policy import Policy


def decide(snapshot, belief):
    allocations, taken = [], set()
    for job in snapshot.waiting.values():
        places = []
        free = [gpu for gpu in range(len(snapshot)) if gpu not in taken]
        if job.job.gpus > 1:  # a gang takes empty GPUs of one type
            empty = [gpu for gpu in free if not snapshot.tenants[gpu]]
            alike = [[gpu for gpu in empty if snapshot.devices[gpu] == kind] for kind in snapshot.types]
            places = [(0.0, tuple(gpus[: job.job.gpus])) for gpus in alike if len(gpus) >= job.job.gpus]
        for gpu in free if job.job.gpus == 1 else ():
            together = [*(tenant.job.workload for tenant in snapshot.tenants[gpu]), job.job.workload]
            answer = belief.answer(snapshot.devices[gpu], together, snapshot.sharing[gpu])
            if len(together) <= 2 and answer.fits and max(answer.slowdown) <= 1.3:
                places.append((answer.step_time_s[-1], (gpu,)))
        if places:
            taken.update(min(places)[1])
            allocations.append(Allocation(job, min(places)[1]))
    return allocations


POLICY = Policy("slowdown-limit", decide)
