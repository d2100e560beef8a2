-- Holds batch jobs that request a share of a GPU, a whole GPU or a MIG slice, and are marked for cotenant, for a
-- limited time.
--
--   sbatch --gres=shard:1 --comment=cotenant:resnet18-cifar:batch_size=64,iterations=20000 train.sh
--   sbatch --gres=gpu:1 --comment=cotenant:resnet18-cifar:batch_size=64,iterations=20000 train.sh
--
-- The hold is a begin time a few seconds ahead, not a priority of 0: if neither the controller (`cotenant controller slurm`)
-- nor the service responds, the job becomes eligible when the time is over, and Slurm schedules it as if cotenant were
-- not there. The controller normally responds within a second or two and ends the hold at once.
--
-- A job with an AdminComment, which other parts of a site's plugin may set before this one, keeps it and is not held.
-- slurm.conf: JobSubmitPlugins=lua; put this file beside slurm.conf.

local HOLD_S = 20
local NO_VAL = slurm.NO_VAL or 4294967294 -- a number that the user did not give

-- What follows `name` in one part of a request, such as ":v100:1" in "gres/gpu:v100:1"; nil if it is for something else.
local function rest_of(part, name)
  local rest = part:match("^gres[:/]" .. name .. "(.*)$") or part:match("^" .. name .. "(.*)$")
  if rest and (rest == "" or rest:find("^[:=]")) then return rest end
  return nil
end

local function is_one(rest)
  if rest:find("^[:=]%d+%a?$") then return rest:sub(2) == "1" end
  return rest == "" or rest:find("^:[^:=]+$") ~= nil or rest:find("^:[^:=]+[:=]1$") ~= nil
end

-- Whether a job requests shards, or one whole GPU per node.
local function asks_for_a_gpu(job)
  local gpus, shards = 0, false
  for _, asked in ipairs({ job.tres_per_node or "", job.tres_per_job or "", job.tres_per_task or "" }) do
    for part in asked:gmatch("[^,]+") do
      if rest_of(part, "shard") then shards = true end
    end
  end
  for part in (job.tres_per_node or ""):gmatch("[^,]+") do
    local rest = rest_of(part, "gpu")
    if rest then gpus = gpus + (is_one(rest) and 1 or 2) end
  end
  return gpus == 1 or (gpus == 0 and shards)
end

function slurm_job_submit(job, partitions, uid)
  local marked = job.comment ~= nil and job.comment:sub(1, 9) == "cotenant:"
  local batch = job.script ~= nil and job.script ~= "" -- srun and salloc have none: a user waits there
  local later = job.begin_time ~= nil and job.begin_time > os.time() -- 0 if the user gave none
  local held = job.priority == 0                                     -- sbatch --hold
  local several = job.min_nodes ~= nil and job.min_nodes > 1 and job.min_nodes < NO_VAL
  local component = job.het_job_offset ~= nil and job.het_job_offset < NO_VAL -- of a heterogeneous job
  local taken = job.admin_comment ~= nil and job.admin_comment ~= ""
  local left = job.array_inx ~= nil or later or held or several or component or taken
  if marked and batch and asks_for_a_gpu(job) and not left then
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
