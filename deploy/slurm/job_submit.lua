-- Holds jobs that request a share of a GPU, a whole GPU or a MIG slice, and are marked for cotenant, for a limited time.
--
--   sbatch --gres=shard:1 --comment=cotenant:resnet18-cifar:batch_size=64,iterations=20000 train.sh
--   sbatch --gres=gpu:1 --comment=cotenant:resnet18-cifar:batch_size=64,iterations=20000 train.sh
--
-- The hold is a begin time a few seconds ahead, not a priority of 0: if neither the controller (`cotenant controller slurm`)
-- nor the service responds, the job becomes eligible when the time is over, and Slurm schedules it as if cotenant were
-- not there. The controller normally responds within a second or two and ends the hold at once.
-- slurm.conf: JobSubmitPlugins=lua; put this file beside slurm.conf.

local HOLD_S = 20

local function asks_for_a_gpu(job)
  if (job.tres_per_node or ""):find("gpu", 1, true) then return true end
  for _, asked in ipairs({ job.tres_per_node or "", job.tres_per_job or "", job.tres_per_task or "" }) do
    if asked:find("shard", 1, true) then return true end
  end
  return false
end

function slurm_job_submit(job, partitions, uid)
  local marked = job.comment ~= nil and job.comment:sub(1, 9) == "cotenant:"
  local later = job.begin_time ~= nil and job.begin_time > os.time() -- 0 if the user gave none
  local held = job.priority == 0                                     -- sbatch --hold
  if marked and asks_for_a_gpu(job) and job.array_inx == nil and not later and not held then
    job.begin_time = os.time() + HOLD_S
    job.admin_comment = "cotenant:held"
    slurm.log_info("cotenant: held back for %d s: %s", HOLD_S, job.comment)
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
