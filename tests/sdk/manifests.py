"""What `kubectl kustomize` makes of every overlay, and of `production` with all components, is valid: strictly, by the
schemas of the oldest Kubernetes that was tried and of the newest that kubernetes-validate knows. Needs kubectl and the
Python package kubernetes-validate; prints SKIPPED without kubectl."""
import os, shutil, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KUBERNETES = os.path.join(ROOT, "deploy", "kubernetes")
OLDEST = "1.32"
# Kinds of other projects, whose schemas the package does not have.
FOREIGN = {"cert-manager.io/v1": {"Certificate", "Issuer"}, "monitoring.coreos.com/v1": {"PrometheusRule", "ServiceMonitor"}}


def kustomize(directory):
    made = subprocess.run(["kubectl", "kustomize", directory], text=True, capture_output=True)
    assert made.returncode == 0, f"{directory}: {made.stderr}"
    return made.stdout


def overlays(work):
    """The name and the manifests of each, as text."""
    found = os.path.join(KUBERNETES, "overlays")
    for name in sorted(os.listdir(found)):
        yield name, kustomize(os.path.join(found, name))
    everything = os.path.join(work, "everything")
    os.mkdir(everything)
    there = os.path.relpath(KUBERNETES, os.path.realpath(everything))
    components = sorted(os.listdir(os.path.join(KUBERNETES, "components")))
    lines = ["apiVersion: kustomize.config.k8s.io/v1beta1", "kind: Kustomization", "resources:",
             f"  - {there}/overlays/production", "components:", *(f"  - {there}/components/{name}" for name in components)]
    with open(os.path.join(everything, "kustomization.yaml"), "w") as file:
        file.write("\n".join(lines) + "\n")
    yield "production with " + ", ".join(components), kustomize(everything)


def main():
    if not shutil.which("kubectl"):
        print("SKIPPED: kubectl is not installed")
        return
    import kubernetes_validate, yaml
    seen = 0
    with tempfile.TemporaryDirectory() as work:
        for name, text in overlays(work):
            documents = [document for document in yaml.safe_load_all(text) if document]
            foreign = 0
            for document in documents:
                what = f"{name}: {document['kind']} {document['metadata']['name']}"
                if document["kind"] in FOREIGN.get(document["apiVersion"], ()):
                    foreign += 1
                    continue
                for version in (OLDEST, kubernetes_validate.latest_version()):
                    try:
                        kubernetes_validate.validate(document, version, strict=True)
                    except Exception as error:
                        sys.exit(f"FAILED: {what} is not valid for Kubernetes {version}: {error}")
            print(f"{name}: {len(documents) - foreign} documents are valid; {foreign} of other projects are not checked")
            seen += 1
    assert seen >= 4, f"only {seen} overlays"


main()
