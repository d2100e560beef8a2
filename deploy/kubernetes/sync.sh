#!/bin/sh
# Tells the service once what the cluster looks like: its nodes, GPUs, and the annotated pods that run on them. Repeat it:
#
#     while :; do deploy/kubernetes/sync.sh; sleep 15; done
#
# Needs kubectl (allowed to list nodes and the pods of all namespaces), cotenant and curl.
#     COTENANT_SERVICE  address of the service (default: http://127.0.0.1:8080)
#     COTENANT_TOKEN    a token of scope admin; may be empty if the service listens on loopback
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
kubectl get nodes,pods -A -o json | cotenant cluster import kubectl - -o "$folder/cluster.yaml"
cotenant cluster show "$folder/cluster.yaml" --json >"$folder/cluster.json"
# The token is read from standard input, so that it is not in the list of processes.
printf 'header = "authorization: Bearer %s"\n' "${COTENANT_TOKEN:-}" |
    curl --config - --silent --show-error --fail-with-body --max-time 30 -X PUT \
        -H 'content-type: application/json' --data-binary "@$folder/cluster.json" \
        "${COTENANT_SERVICE:-http://127.0.0.1:8080}/v1/cluster?replace_tenants=true"
