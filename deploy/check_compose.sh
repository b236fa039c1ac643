#!/usr/bin/env bash
# Runs docker-compose.yml in one go: config, build, up, a request from outside, a second draft, the death of one under
# load, down. Needs docker with Compose v2, and the environment that `make setup` makes.
#   deploy/check_compose.sh                                 everything
#   deploy/check_compose.sh target draft prometheus         these services and what they depend on
# PULL=never uses the images that are there. The project's name keeps it apart from a cluster that runs here;
# the ports are the same.
set -euo pipefail
cd "$(dirname "$0")/.."
export COMPOSE_PROJECT_NAME=draftproof-check
python=${PYTHON:-.venv/bin/python}
pull=${PULL:-missing}
services=("$@")

say() { printf '\n== %s (%s s)\n' "$*" "$SECONDS"; }
load() { "$python" -m deploy.check_load "$@"; }
up() { docker compose up -d --no-build --pull "$pull" --wait --wait-timeout 900 "$@"; }
finish() {
  if [[ -z $passed ]]; then
    docker compose ps --all || true
    docker compose logs --tail 40 || true
  fi
  say "down"
  docker compose down --volumes --timeout 10
  [[ -z $passed ]] || say "every step passed"
}

deploy/secrets.sh
say "config"
docker compose config -q
docker compose -f docker-compose.yml -f deploy/compose.gpu.yml config -q
say "build"
docker compose build
passed=
trap finish EXIT
say "up"
up "${services[@]}"
load ready target 1
load ready draft 1
say "a request from outside"
load stream
say "a second draft, with no restart"
before=$(docker compose ps -q orchestrator)
up --no-recreate --scale draft=2 "${services[@]}"
[[ $(docker compose ps -q orchestrator) == "$before" ]]
load ready draft 2
say "kill -9 of a draft under load"
load disturbed 8 docker kill --signal KILL "$(docker compose ps -q draft | head -n 1)"
say "Prometheus"
load scraped
passed=yes
