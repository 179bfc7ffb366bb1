#!/bin/bash
@DIRECTIVES@

# Modules and environments of your site go here, such as: module load cuda; source ~/vllm/bin/activate

# What each of the nodes runs.
rank() {
  cat <<'END_OF_RANK'
# Not where the job was submitted: Python imports from there, and a folder ORG/NAME would take the place of the model.
@AWAY@
@ENVIRONMENT@
@BEFORE@
case $SLURM_PROCID in
@OWN@
esac
exec @INSIDE@ python3 "$VCLUSTER_JOB/program/step.py" @VLLM@ "${own[@]}"
END_OF_RANK
}

main() {
  umask 077
  place=${VCLUSTER_JOBS:-$HOME/vcluster-jobs}
  # From here on by its path without links: another user may replace a link after it was followed.
  jobs=$(mkdir -p "$place" && cd -P "$place" && pwd -P) || fail "cannot write to $place/$SLURM_JOB_ID"
  open=$(closed "$jobs") || fail "$open"
  job=${jobs%/}/$SLURM_JOB_ID
  # They divide what Python and containers get.
  case $job in *[:,]*) fail "$job has a colon or a comma: export VCLUSTER_JOBS=FOLDER" ;; esac
  # Others may know the number before the job begins, and make the folder where all may write.
  own_folder "$job" || fail "cannot write to $job"
  closed_to_others "$job" || fail "$job is not a folder of $(id -un) alone"
  mkdir -p "$job/program" || fail "cannot write to $job"
  { (cd "$job/program" && files) && rank >"$job/rank.sh" && key key && key @KEY@; } || fail "cannot write to $job"
  echo "vcluster: everything of this job is in $job"
  export VCLUSTER_JOB=$job VCLUSTER_FROM=$PWD VCLUSTER_API_KEY_FILE=$job/@KEY@ PYTHONPATH=$job/program${PYTHONPATH:+:$PYTHONPATH}
  export HF_HOME=${HF_HOME:-$HOME/.cache/huggingface} MASTER API_PORT MASTER_PORT ENGINES_PORT
  export VCLUSTER_ATTEMPT VCLUSTER_READY REPLICA
  mkdir -p "$HF_HOME"
  export VCLUSTER_MOUNTS=$job:$job,$HF_HOME:$HF_HOME
  rm -f "$job"/ready.json "$job"/replica-*.json
  stopped='' parts=() code=0
  trap 'stopped=yes; kill -TERM "${parts[@]}" 2>/dev/null' TERM
  # With one replica its own API is that of the job.
  [ @REPLICAS@ = 1 ] || front
  for REPLICA in $(seq @REPLICAS@); do
    replica &
    parts+=($!)
  done
  # A signal ends a wait, and not what is waited for.
  for part in "${parts[@]}"; do
    while
      wait "$part" || code=$?
      kill -0 "$part" 2>/dev/null
    do :; done
  done
  [ -z "$stopped" ] || exit 0
  # It was ready on these nodes and cannot be any longer: Slurm may find others.
  [ ! -e "$job/ready" ] || [ "${SLURM_RESTART_COUNT:-0}" -ge 3 ] || scontrol requeue "$SLURM_JOB_ID"
  exit "$code"
}

# A replica, started again on the same nodes for as long as it can be ready: a job that is queued again waits for two
# minutes at least.
replica() {
  stopped='' missed=0 first=$(((REPLICA - 1) * @SPAN@ / @SHARE@))
  VCLUSTER_READY=$job/@READY@
  on "$first"
  MASTER=$(address)
  trap 'stopped=yes; kill -TERM "$step" 2>/dev/null' TERM
  until [ "$missed" = 2 ]; do
    attempt
    # Never ready: another try would fail in the same way.
    [ -e "$job/ready" ] || break
  done
  exit "$code"
}

# One start of vLLM on all nodes of a replica, until the first of them ends.
attempt() {
  VCLUSTER_ATTEMPT=$(($(find "$job" -maxdepth 1 -name 'attempt-*' | wc -l) + 1))
  until mkdir "$job/attempt-$VCLUSTER_ATTEMPT" 2>/dev/null; do
    # Another replica may have begun at this moment.
    [ -d "$job/attempt-$VCLUSTER_ATTEMPT" ] || fail "cannot write to $job"
    VCLUSTER_ATTEMPT=$((VCLUSTER_ATTEMPT + 1))
  done
  logs=$job/attempt-$VCLUSTER_ATTEMPT
  ln -sfn "attempt-$VCLUSTER_ATTEMPT" "$job/replica-$REPLICA"
  rm -f "$VCLUSTER_READY"
  # Jobs that share a node differ in their number, and so in their ports.
  ports=$(free $((20000 + (SLURM_JOB_ID * @PARTS@ + REPLICA - 1) * 3 % 12000)) 3) || exit
  read -r API_PORT MASTER_PORT ENGINES_PORT <<<"$ports"
  srun --kill-on-bad-exit=1 --wait=30 --cpu-bind=none --output="$logs/rank-%t.log" @WHERE@ @STEP@ \
    bash "$job/rank.sh" &
  step=$! code=0
  wait "$step" || code=$?
  if [ "$stopped" ]; then
    wait "$step"
    record "stopped $(scontrol show job -o "$SLURM_JOB_ID" | tr ' ' '\n' | grep -E '^(JobState|EndTime|PreemptTime)=' | tr '\n' ' ')"
    exit 0
  fi
  record "failed ExitCode=$code"
  # vLLM exits with 0 when its engine has died.
  [ "$code" != 0 ] || code=1
  if mv "$VCLUSTER_READY" "$logs/ready.json" 2>/dev/null; then missed=0 && : >"$job/ready"; else missed=$((missed + 1)); fi
}

# What answers at the address of the job, and sends each request to a replica that is ready; a dead one is replaced.
front() {
  on 0
  begin=$((20000 + (SLURM_JOB_ID * @PARTS@ + @REPLICAS@) * 3 % 12000))
  # Before any replica: without a front none of them is reached.
  API_PORT=$(free "$begin" 1) || exit
  (
    REPLICA=front MASTER=$(address) VCLUSTER_API_KEY_FILE=$job/key
    until srun --overlap --nodes=1 --ntasks=1 --relative=0 --output="$job/front.log" --open-mode=append @STEP@ \
      bash "$job/rank.sh"; do
      # Another user of the node may have taken the port of a front that ended.
      until sleep 1 && API_PORT=$(free "$begin" 1); do :; done
    done
  ) &
}

record() { echo "$(date +%s) attempt=$VCLUSTER_ATTEMPT $1" >>"$job/ends"; }

fail() { echo "vcluster: $1" >&2; exit 1; }

@JUDGES@

# Nothing but its file has a key: not a command line, an environment or the record of the job.
key() {
  [ ! -s "$job/$1" ] || return 0
  : >"$job/$1" && chmod 600 "$job/$1" && head -c 32 /dev/urandom | base64 | tr -d '+/=\n' >"$job/$1"
}

# What is before a command for a node of the job, by its number from 0: nothing where that is this one.
on() {
  node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n "$(($1 + 1))p")
  there=(srun --overlap --nodes=1 --ntasks=1 --nodelist="$node")
  [ "$1" != 0 ] || there=()
}

# The address of that node, as others reach it.
address() {
  found=$(getent ahostsv4 "$node" | awk '$1 !~ /^127[.]/ { print $1; exit }')
  [ "$found" ] || found=$("${there[@]}" hostname -I | awk '{ print $1 }')
  echo "$found"
}

# The first $2 ports from $1 on that a program of the node in `there` can have: what holds one need not answer there.
free() {
  # srun has a code of its own for a program that is missing.
  "${there[@]}" bash -c 'command -v python3 >/dev/null || exit 127; exec python3 -Ic "$@"' bash '
import socket, sys
found = []
for port in range(int(sys.argv[1]), 65536):
    with socket.socket() as one:
        # As vLLM asks for its own: connections that have ended hold none.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("", port))
        except OSError:
            continue
    found.append(port)
    if len(found) == int(sys.argv[2]):
        print(*found)
        break
else:
    sys.exit(1)
' "$1" "$2" || case $? in
    127) fail "no python3 on $node" ;;
    *) fail "no free ports of $node are known" ;;
  esac
}

put() { cat >"$1" || exit; }

# The rest are files of vcluster, which the job writes into its folder: the key check in front of vLLM, and what asks
# vLLM for a first token.
files() {
@FILES@
}

main
