#!/usr/bin/env bash
# Writes .env, which git ignores, with a random token for each thing that docker-compose.yml asks one for.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ -e .env ]]; then
  echo ".env is there already: nothing changed"
  exit 0
fi
umask 077
random() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }
cat > .env <<END
DRAFTPROOF_RAY_TOKEN=$(random)
GRAFANA_PASSWORD=$(random)
END
echo "wrote .env"
