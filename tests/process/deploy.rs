//! The files in `deploy/` name only what exists: every flag, setting, port, path and metric in them is asked of the
//! program.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use serde_json::Value;
use session_manager::config::{AdapterConfig, Config};

use crate::node::NodeProcess;
use crate::plain_http::{call, get};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files_below(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "yaml") {
            found.push(path);
        }
    }
}

/// Every document of every YAML file, as JSON.
fn documents() -> Vec<(PathBuf, Value)> {
    let mut files = Vec::new();
    files_below(&root(), &mut files);
    files.sort();
    let mut documents = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a file");
        for document in serde_yaml_ng::Deserializer::from_str(&text) {
            let value = Value::deserialize(document).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
            documents.push((file.clone(), value));
        }
    }
    assert!(documents.len() > 15, "only {} documents", documents.len());
    documents
}

fn of_kind(kind: &str) -> Vec<Value> {
    let documents = documents().into_iter().map(|(_, document)| document);
    documents.filter(|document| document["kind"] == kind).collect()
}

/// Every value under this key, at any depth.
fn under<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                if name == key {
                    found.push(field);
                }
                under(field, key, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| under(item, key, found)),
        _scalar => {}
    }
}

fn all_under<'a>(value: &'a Value, key: &str) -> Vec<&'a Value> {
    let mut found = Vec::new();
    under(value, key, &mut found);
    found
}

fn words(list: &Value) -> Vec<String> {
    let words = list.as_array().into_iter().flatten();
    words.filter_map(|word| word.as_str().map(str::to_owned)).collect()
}

fn help(subcommand: &[&str]) -> String {
    let program = env!("CARGO_BIN_EXE_session-manager");
    let output = Command::new(program).args(subcommand).arg("--help").output().expect("the program runs");
    assert!(output.status.success(), "{subcommand:?} is no command");
    String::from_utf8(output.stdout).expect("text")
}

/// The command lines of containers and probes, without the name of the program.
fn command_lines() -> Vec<Vec<String>> {
    let mut lines = Vec::new();
    for (file, document) in documents() {
        if file.ends_with("compose.yaml") {
            lines.extend(all_under(&document, "command").into_iter().map(words));
        } else {
            lines.extend(all_under(&document, "args").into_iter().map(words));
            let executed = all_under(&document, "command").into_iter().map(words);
            lines.extend(executed.map(|line| {
                assert_eq!(line[0], "/session-manager", "{}: the image holds nothing else", file.display());
                line[1..].to_vec()
            }));
        }
    }
    lines
}

#[test]
fn every_argument_is_one_of_the_program() {
    let lines = command_lines();
    assert!(lines.len() >= 7, "{lines:?}");
    for line in lines {
        let verbs: Vec<&str> = line.iter().map(String::as_str).take_while(|word| !word.starts_with('-')).collect();
        // What `call` calls is no command.
        let verbs = if verbs[0] == "call" { &verbs[..1] } else { &verbs[..] };
        let help = help(verbs);
        for flag in line.iter().filter(|word| word.starts_with("--")) {
            let flag = flag.split('=').next().unwrap_or_default();
            let named = help.split(|c: char| !c.is_alphanumeric() && c != '-').any(|word| word == flag);
            assert!(named, "{flag} is no argument of {verbs:?}");
        }
    }
}

/// The settings files of the overlays, with the variables that Kubernetes sets.
fn settings() -> Vec<(PathBuf, Config)> {
    let mut files = Vec::new();
    files_below(&root(), &mut files);
    let settings = files.into_iter().filter(|file| file.ends_with("session-manager.yaml"));
    let read = settings.map(|file| {
        let text = std::fs::read_to_string(&file).expect("a file");
        let text = text.replace("${POD_NAME}", "session-manager-0").replace("${POD_NAMESPACE}", "default");
        let text = text.replace("${MAIN_URL}", "wss://main:49134");
        assert!(!text.contains("${"), "{}: a variable that nobody sets", file.display());
        let config = Config::from_yaml(&text).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
        (file, config)
    });
    read.collect()
}

#[test]
fn every_setting_is_accepted_and_every_port_is_one_of_the_settings() {
    let settings = settings();
    assert_eq!(settings.len(), 3);
    let mut ports = BTreeSet::new();
    for (file, config) in &settings {
        config.validate().unwrap_or_else(|why| panic!("{}: {why}", file.display()));
        ports.insert(u64::from(config.listen.port()));
        ports.extend(config.peer_listen.map(|peers| u64::from(peers.port())));
        if let AdapterConfig::Raft(_) = config.adapter {
            assert_eq!(config.discover.as_deref(), Some("dns:session-manager-peers.default.svc:49135"));
            assert_eq!(config.bootstrap_expect, Some(if file.iter().any(|part| part == "single") { 1 } else { 3 }));
        }
    }
    let mut named: BTreeSet<&str> = BTreeSet::new();
    let sets = of_kind("StatefulSet");
    for port in all_under(&sets[0], "containerPort") {
        assert!(ports.contains(&port.as_u64().expect("a number")), "{port}");
    }
    for port in all_under(&sets[0], "ports").into_iter().filter_map(Value::as_array).flatten() {
        named.extend(port["name"].as_str());
    }
    for service in of_kind("Service") {
        for port in service["spec"]["ports"].as_array().expect("ports") {
            assert!(ports.contains(&port["port"].as_u64().expect("a number")), "{port}");
            assert!(named.contains(port["targetPort"].as_str().expect("a name")), "{port}");
        }
    }
    // Every file that the settings name is in a volume that the pod mounts.
    let mounts = all_under(&sets[0], "mountPath");
    for (_, config) in settings.iter().filter(|(_, config)| config.discover.is_some()) {
        let files = [&config.token_file, &config.tls_cert, &config.tls_key, &config.peer_ca];
        let files = files.into_iter().flatten().map(PathBuf::as_path).chain(config.adapter.data_dir());
        for file in files {
            let mounted = mounts.iter().any(|mount| file.starts_with(mount.as_str().unwrap_or("nowhere")));
            assert!(mounted, "{} is in no volume", file.display());
        }
    }
}

#[tokio::test]
async fn every_path_is_answered_and_every_metric_is_measured() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = NodeProcess::start(&dir.path().join("data"), &[]);
    let documents = documents();
    let mut paths = BTreeSet::new();
    for (_, document) in &documents {
        let probes = all_under(document, "httpGet").into_iter().map(|probe| &probe["path"]);
        let scrapes = document["spec"]["endpoints"].as_array().into_iter().flatten().map(|scrape| &scrape["path"]);
        paths.extend(probes.chain(scrapes).filter_map(|path| path.as_str().map(str::to_owned)));
    }
    assert!(paths.contains("/livez") && paths.contains("/readyz") && paths.contains("/metrics"), "{paths:?}");
    for path in &paths {
        assert_eq!(get(node.address, path).await.0, 200, "{path}");
    }
    call(node.address, "session::list", &serde_json::json!({})).await;
    let (_, measured) = get(node.address, "/metrics").await;
    // The list in the page is compared with nodes of every kind elsewhere; this node has no certificates.
    let page = operations();
    let dashboard = dashboard();
    let documents = documents.iter().map(|(_, document)| document).chain([&dashboard]);
    let mut metrics = BTreeSet::new();
    for expression in documents.flat_map(|document| all_under(document, "expr")) {
        let text = expression.as_str().expect("text").to_owned();
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned);
        metrics.extend(words.filter(|word| word.starts_with("session_manager_")));
    }
    assert!(metrics.len() > 30, "{metrics:?}");
    for metric in metrics {
        let name =
            ["_bucket", "_sum", "_count"].iter().find_map(|ending| metric.strip_suffix(ending)).unwrap_or(&metric);
        assert!(page.contains(&format!("| {name} |")), "{metric} is not in the page");
        let may_be_absent = name.contains("certificate");
        assert!(may_be_absent || measured.contains(&format!("# TYPE {name} ")), "{metric} is not measured");
    }
}

fn operations() -> String {
    std::fs::read_to_string(root().join("../architecture/operations.md")).expect("the page")
}

fn dashboard() -> Value {
    let text = std::fs::read_to_string(root().join("monitoring/grafana-dashboard.json")).expect("a file");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn every_alarm_says_what_to_do_and_both_forms_of_the_rules_are_the_same() {
    let operator = of_kind("PrometheusRule");
    let files = documents().into_iter().find(|(file, _)| file.ends_with("monitoring/rules.yaml") && is_plain(file));
    let (_, plain) = files.expect("the rules for Prometheus");
    assert_eq!(operator[0]["spec"]["groups"], plain["groups"]);
    let page = operations();
    let rules = plain["groups"][0]["rules"].as_array().expect("rules");
    assert!(rules.len() >= 15, "{rules:?}");
    for rule in rules {
        let name = rule["alert"].as_str().expect("a name");
        assert!(page.contains(&format!("| {name} |")), "the page does not say what to do about {name}");
        assert!(rule["annotations"]["summary"].is_string() && rule["labels"]["severity"].is_string(), "{rule}");
    }
    let listed = page.lines().filter(|line| line.starts_with("| SessionManager")).count();
    assert_eq!(listed, rules.len(), "an alarm in the page has no rule");
}

fn is_plain(file: &Path) -> bool {
    !file.iter().any(|part| part == "kubernetes")
}

#[test]
fn every_panel_of_the_dashboard_has_its_place_and_a_query() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().expect("panels");
    let (rows, charts): (Vec<&Value>, Vec<&Value>) = panels.iter().partition(|panel| panel["type"] == "row");
    assert!(rows.len() == 4 && charts.len() >= 20, "{} rows, {} charts", rows.len(), charts.len());
    let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "two panels have one id");
    let places: BTreeSet<String> = panels.iter().map(|panel| panel["gridPos"].to_string()).collect();
    assert_eq!(places.len(), panels.len(), "two panels have one place");
    for chart in charts {
        assert!(chart["targets"].as_array().is_some_and(|targets| !targets.is_empty()), "{chart}");
    }
}

#[test]
fn the_cluster_is_installed_so_that_it_heals() {
    let sets = of_kind("StatefulSet");
    let spec = &sets[0]["spec"];
    assert_eq!(spec["podManagementPolicy"], "Parallel");
    let pod = &spec["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/livez", "liveness never asks for a quorum");
    assert_eq!(words(&container["lifecycle"]["preStop"]["exec"]["command"])[2], "step-down", "no member is removed");
    assert!(pod["terminationGracePeriodSeconds"].as_u64() > Some(35), "preStop and a call fit");
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    let peers = of_kind("Service").into_iter().find(|service| service["spec"]["clusterIP"] == "None");
    assert_eq!(peers.expect("a headless service")["spec"]["publishNotReadyAddresses"], true);
    assert_eq!(of_kind("PodDisruptionBudget")[0]["spec"]["maxUnavailable"], 1);
    // A selector that is missing selects nothing, or everything.
    let own = &spec["template"]["metadata"]["labels"];
    assert!(own["app.kubernetes.io/name"].is_string(), "{own}");
    let budgets = of_kind("PodDisruptionBudget").into_iter().map(|budget| budget["spec"]["selector"].clone());
    let policies = of_kind("NetworkPolicy").into_iter().map(|policy| policy["spec"]["podSelector"].clone());
    for selector in budgets.chain(policies).chain([spec["selector"].clone()]) {
        assert_eq!(&selector["matchLabels"], own);
    }
    let services = of_kind("Service");
    for service in &services {
        assert_eq!(&service["spec"]["selector"], own);
    }
    // The base gives every resource the label of the pods. A pod behind two Services that are scraped counts twice.
    for scrape in of_kind("ServiceMonitor") {
        let wanted = scrape["spec"]["selector"]["matchLabels"].as_object().expect("labels").clone();
        let selected = services.iter().filter(|service| {
            let labels = &service["metadata"]["labels"];
            wanted.iter().all(|(name, value)| labels[name] == *value || own[name] == *value)
        });
        assert_eq!(selected.count(), 1, "{wanted:?}");
    }
}

#[test]
fn the_image_runs_as_the_user_of_the_manifests_and_can_write_to_new_volumes() {
    let image = std::fs::read_to_string(root().join("Dockerfile")).expect("a file");
    let stages: Vec<&str> = image.split("\nFROM ").skip(1).filter(|stage| stage.starts_with("scratch")).collect();
    assert_eq!(stages.len(), 2, "one from sources, one from a program of this machine");
    let pod = &of_kind("StatefulSet")[0]["spec"]["template"]["spec"]["securityContext"];
    let user = format!("USER {}:{}\n", pod["runAsUser"], pod["runAsGroup"]);
    for stage in stages {
        let (_, after) = stage.split_once(&user).expect("the user of the manifests");
        assert!(after.starts_with("WORKDIR /data\n"), "the mount point of a new volume belongs to the user: {stage}");
        assert!(stage.contains("ENTRYPOINT [\"/session-manager\"]"), "{stage}");
    }
    let text = std::fs::read_to_string(root().join("compose.yaml")).expect("a file");
    let compose: Value = serde_yaml_ng::from_str(&text).expect("YAML");
    let services = compose["services"].as_object().expect("services");
    assert_eq!(services.len(), 3);
    for (name, service) in services {
        let data = service["volumes"].as_array().expect("volumes").iter().filter_map(Value::as_str);
        assert!(data.clone().any(|volume| volume.ends_with(":/data")), "{name}: {service}");
    }
}
