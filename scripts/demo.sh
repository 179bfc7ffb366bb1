#!/usr/bin/env bash
# The main job, from nothing to an answer: two hosts, up, serve, ask. Run again, it finds what is there.
# With FOLDER the sandbox is made there, by the vcluster that PATH finds.
set -euo pipefail
if [ $# -gt 0 ]; then
  cd "$1"
else
  cd "$(dirname "$0")/.."
  export PATH="$PWD/.venv/bin:$PATH"
fi
export VCLUSTER_INVENTORY="$PWD/sandbox/inventory.yaml"
started=$(date +%s)
bold='' end=''
if [ -t 1 ]; then bold=$'\033[1m' end=$'\033[0m'; fi
step() { printf '\n%s$ %s%s\n' "$bold" "$*" "$end"; }
# From nothing on two cores with nothing else to do: 110 s the sandbox, 38 s `up`, 48 s `serve`. Only the shares count.
# Where the sandbox was built before it takes no time, and how long the rest takes is not known.
built_in=0
left() {
  if [ "$built_in" -ge 60 ]; then printf '\nabout %d s left\n' $((($(date +%s) - started) * $1 / $2)); fi
}

step vcluster sandbox up --hosts 2 --gpus 2
vcluster sandbox up --hosts 2 --gpus 2
built_in=$(($(date +%s) - started))
left 86 110
step vcluster up
vcluster up --yes
left 48 148
step vcluster serve sandbox/tiny-llama
vcluster serve --yes sandbox/tiny-llama
step vcluster status
vcluster status

step vcluster complete "'The cluster answers:'" --max-tokens 24 --temperature 0
vcluster complete 'The cluster answers:' --max-tokens 24 --temperature 0

printf '\nTP=2 × PP=2 over two hosts answered %d s after the first of these commands. The model is tiny: it knows 75 words.\n' $(($(date +%s) - started))
# Whoever named a folder removes the sandbox, and has no make there.
if [ $# -gt 0 ]; then exit; fi
cat <<'END'
The sandbox stays for you to play with:
  export VCLUSTER_INVENTORY="$PWD/sandbox/inventory.yaml" PATH="$PWD/.venv/bin:$PATH"
  vcluster chat
vcluster stop ends the model, vcluster down the cluster; make clean removes the sandbox.
END
