"""What pages use of `kubectl`, where there is no cluster.

`kubectl exec ... -- COMMAND` runs the command here. Of each other command only the names are
checked: a namespace, a deployment and a label have to be those of `examples/kubernetes`, a folder
that is applied has to exist. Pods, nodes and events have names that a cluster makes.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import yaml

EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "kubernetes"
VERBS = ("delete", "describe", "edit", "exec", "get", "logs", "rollout", "scale", "set", "top")


def main(*words: str) -> None:
    documents = [
        one for path in EXAMPLES.glob("*.yaml") for one in yaml.safe_load_all(path.read_text())
    ]
    deployments = {one["metadata"]["name"] for one in documents if one["kind"] == "Deployment"}
    namespaces = {one["metadata"]["name"] for one in documents if one["kind"] == "Namespace"}
    if words[:2] == ("apply", "-k"):
        assert (EXAMPLES.parents[1] / words[2] / "kustomization.yaml").is_file(), words[2]
        return
    option, namespace, verb, *rest = words
    assert (option, namespace in namespaces) == ("-n", True), f"-n {namespace}: {namespaces}"
    assert verb in VERBS, f"unknown here: {verb}"
    text = " ".join(rest)
    named = {*re.findall(r"\bdeploy/(\S+)", text), *re.findall(r"-l app=(\S+)", text)}
    assert named <= deployments, f"not in examples/kubernetes: {', '.join(named - deployments)}"
    if verb == "exec":
        command = rest[rest.index("--") + 1 :]
        os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
