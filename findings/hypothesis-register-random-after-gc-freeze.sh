#!/usr/bin/env bash
# hypothesis 6.170.17 on CPython 3.11: after gc.freeze(), register_random warns that a generator
# "could be garbage collected immediately", although a module holds it for good.
#
# Why it matters: gc.freeze() after imports is a usual way to make long test runs and forking servers
# cheaper. Plugins register their generators when hypothesis is first imported (trio does so by an
# entry point), which may come after the freeze; with warnings as errors the test session then ends
# with a traceback in its terminal summary, far from the call of gc.freeze().
#
# Reason: hypothesis asks gc.get_referrers() who holds the generator, and CPython leaves frozen objects
# (the permanent generation) out of the answer.
#
# Seen: "before the freeze: 0 warnings; after it: ['HypothesisWarning']", and the generator is managed
# in both cases.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet hypothesis==6.170.17
cat > "$folder/held.py" <<'PYTHON'
import random

FIRST, SECOND = random.Random(1), random.Random(2)
PYTHON
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import gc
import warnings

import held
from hypothesis import register_random
from hypothesis.errors import HypothesisWarning
from hypothesis.internal.entropy import RANDOMS_TO_MANAGE


def registered(generator):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        register_random(generator)
    managed = generator in [ref() for ref in RANDOMS_TO_MANAGE.data.copy().values()]
    return [entry.category for entry in seen], managed


before = registered(held.FIRST)
gc.freeze()
after = registered(held.SECOND)
print(f"before the freeze: {len(before[0])} warnings; after it: {[c.__name__ for c in after[0]]}")
assert before == ([], True), before
assert after == ([HypothesisWarning], True), after
PYTHON
echo "as described"
