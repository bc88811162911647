"""What `kubectl kustomize` makes of every overlay, and of `production` with all components, is valid: strictly, by the
schemas of the oldest Kubernetes that was tried and of the newest that kubernetes-validate knows. Needs kubectl and the
Python package kubernetes-validate; prints SKIPPED without kubectl."""
import os, re, shutil, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KUBERNETES = os.path.join(ROOT, "deploy", "kubernetes")
OLDEST = "1.32"
# Kinds of other projects, whose schemas the package does not have.
FOREIGN = {"cert-manager.io/v1": {"Certificate", "Issuer"},
           "monitoring.coreos.com/v1": {"PrometheusRule", "ServiceMonitor"}}


def kustomize(directory):
    made = subprocess.run(["kubectl", "kustomize", directory], text=True, capture_output=True)
    assert made.returncode == 0, f"{directory}: {made.stderr}"
    return made.stdout


def overlays(work):
    """The name and the manifests of each, as text."""
    found = os.path.join(KUBERNETES, "overlays")
    for name in sorted(os.listdir(found)):
        yield name, kustomize(os.path.join(found, name))
    # The lines of the components become part of the overlay, as an operator would do it.
    copy = shutil.copytree(KUBERNETES, os.path.join(work, "kubernetes"))
    overlay = os.path.join(copy, "overlays", "production")
    with open(os.path.join(overlay, "kustomization.yaml")) as file:
        text = re.sub(r"^# (components:|  - \.\./\.\./components/)", r"\1", file.read(), flags=re.MULTILINE)
    components = sorted(os.listdir(os.path.join(copy, "components")))
    for name in components:
        assert f"\n  - ../../components/{name}\n" in text, f"the overlay production does not offer {name}"
    with open(os.path.join(overlay, "kustomization.yaml"), "w") as file:
        file.write(text)
    yield "production with " + ", ".join(components), kustomize(overlay)


def images(value):
    """Every image that a container of the manifests names."""
    if isinstance(value, dict):
        return [image for key, item in value.items() for image in ([item] if key == "image" else images(item))]
    return [image for item in value for image in images(item)] if isinstance(value, list) else []


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
                for image in images(document):
                    assert ":" in image, f"{name}: the image {image!r} has no version"
                what = f"{name}: {document['kind']} {document['metadata']['name']}"
                if document["kind"] in FOREIGN.get(document["apiVersion"], ()):
                    foreign += 1
                    continue
                for version in (OLDEST, kubernetes_validate.latest_version()):
                    try:
                        kubernetes_validate.validate(document, version, strict=True)
                    except Exception as error:
                        sys.exit(f"FAILED: {what} is not valid for Kubernetes {version}: {str(error).splitlines()[0]}")
            print(f"{name}: {len(documents) - foreign} are valid, {foreign} of other projects are not checked")
            seen += 1
    assert seen >= 4, f"only {seen} overlays"


main()
