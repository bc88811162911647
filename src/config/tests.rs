//! Tests of the configuration: defaults, bounds, old keys, and errors that name the key.

use super::*;

fn variables(name: &str) -> Option<String> {
    match name {
        "HOME" => Some("/home/me".to_owned()),
        "LIMIT" => Some("7".to_owned()),
        "LEGACY" => Some("false".to_owned()),
        "TRICK" => Some("x}\nmax_connections: 1".to_owned()),
        _ => None,
    }
}

fn parse(text: &str) -> Result<Config, String> {
    Config::from_yaml_with(text, &variables).map_err(|error| error.to_string())
}

fn refusal(text: &str) -> String {
    parse(text).expect_err(text)
}

#[test]
fn an_empty_document_and_the_default_file_are_the_default() {
    for text in ["", "{}", "# only words\n", "adapter: {name: raft}", Config::default_yaml()] {
        assert_eq!(parse(text).unwrap(), Config::default(), "{text}");
    }
    let defaults = serde_json::to_value(Config::default()).unwrap();
    let file: serde_json::Value = serde_yaml_ng::from_str(Config::default_yaml()).unwrap();
    assert_eq!(file, defaults, "the default file names every setting");
    Config::default().validate().unwrap();
}

#[test]
fn a_printed_configuration_reads_back() {
    let config =
        parse("{adapter: {name: fs, config: {data_dir: /x}}, listen: '[::1]:1', legacy_names: false}").unwrap();
    assert_eq!(parse(&serde_json::to_string(&config).unwrap()).unwrap(), config);
}

#[test]
fn the_old_keys_of_the_adapter_are_read_too() {
    let today = parse("adapter: {config: {data_dir: /data}, name: fs}").unwrap();
    let before = parse("backend: fs\nbackend_config:\n  data_dir: /data\n").unwrap();
    assert_eq!(today, before);
    assert_eq!(today.adapter, AdapterConfig::Fs(DataDir { data_dir: "/data".into() }));
    assert_eq!(parse("backend: fs").unwrap().adapter, AdapterConfig::Fs(DataDir::default()));
    let both = "adapter: {name: fs}\nbackend: fs";
    assert_eq!(refusal(both), "adapter: its old names backend and backend_config are given too: remove them");
    assert_eq!(refusal("backend_config: {}"), "backend_config: backend is missing: write backend: raft, fs or bridge");
}

#[test]
fn a_bridge_names_its_main_by_one_url_or_several() {
    let one = parse("adapter: {name: bridge, config: {url: 'ws://main:5000/bus?a=b'}}").unwrap();
    let before = parse("backend: bridge\nbackend_config: {url: 'ws://main:5000/bus?a=b', timeout_ms: 5000}").unwrap();
    assert_eq!(one, before);
    let AdapterConfig::Bridge(bridge) = &one.adapter else { panic!("{one:?}") };
    assert_eq!(bridge.mains(), [("adapter.config.url".to_owned(), "ws://main:5000/bus?a=b".to_owned())]);
    assert_eq!(shown(&bridge.mains()[0].1), "ws://main:5000/bus");
    assert_eq!(parse(&serde_json::to_string(&one).unwrap()).unwrap(), one);
    let many = parse("adapter: {name: bridge, config: {urls: ['ws://a:1', 'wss://b'], timeout_ms: 250}}").unwrap();
    let AdapterConfig::Bridge(bridge) = &many.adapter else { panic!("{many:?}") };
    assert_eq!(bridge.mains()[1], ("adapter.config.urls[1]".to_owned(), "wss://b".to_owned()));
    assert_eq!((bridge.timeout_ms, many.adapter.data_dir()), (250, None));
}

#[test]
fn a_bridge_without_a_main_or_to_itself_is_refused() {
    let cases = [
        ("{}", "adapter.config.url: missing"),
        ("{url: 'ws://a:1', urls: ['ws://b:1']}", "adapter.config.urls: url is given too"),
        ("{url: ''}", "adapter.config.url: \"\" is not a URL"),
        ("{url: main}", "adapter.config.url: \"main\" is not the address of a bus: write ws://host:port"),
        ("{url: 'http://a:1'}", "adapter.config.url: \"http://a:1\" is not the address of a bus"),
        ("{url: 'ws://me:secret@a:1'}", "adapter.config.url: \"ws://a:1\" names a user"),
        ("{urls: ['ws://a:1', 'ws://a:1']}", "adapter.config.urls[1]: ws://a:1 is given twice"),
        ("{url: 'ws://a:1', timeout_ms: 0}", "adapter.config.timeout_ms: 0 is out of bounds"),
        ("{url: 'ws://a:1', timeout_ms: soon}", "adapter.config.timeout_ms: invalid type"),
        ("{url: 'ws://a:1', data_dir: x}", "adapter.config.data_dir: unknown field"),
        ("{url: 5}", "adapter.config.url: invalid type"),
    ];
    for (config, words) in cases {
        let refused = refusal(&format!("adapter: {{name: bridge, config: {config}}}"));
        assert!(refused.starts_with(words), "{config}\n  {refused}");
        assert!(!refused.contains("secret"), "{refused}");
    }
    let peers = "{peer_listen: '127.0.0.1:1', adapter: {name: bridge, config: {url: 'ws://a:1'}}}";
    assert!(refusal(peers).starts_with("peer_listen: the bridge adapter has no peers"));
    // An argument may change the own address, so it is checked when the node starts.
    for own in ["ws://127.0.0.1:49134", "ws://localhost:49134/x"] {
        let config = parse(&format!("adapter: {{name: bridge, config: {{urls: ['ws://a:1', '{own}']}}}}")).unwrap();
        let AdapterConfig::Bridge(bridge) = &config.adapter else { panic!("{config:?}") };
        let refused = bridge.refuse_own_address(config.listen).unwrap_err();
        assert!(
            refused.to_string().starts_with(&format!("adapter.config.urls[1]: {own} is this node's own")),
            "{refused}"
        );
        bridge.refuse_own_address("127.0.0.1:50000".parse().unwrap()).unwrap();
    }
}

#[test]
fn an_error_names_the_key() {
    let cases = [
        ("max_conections: 1", "max_conections: unknown field `max_conections`, expected one of `adapter`"),
        ("max_connections: many", "max_connections: invalid type: string \"many\", expected usize"),
        ("adapter: {name: tape}", "adapter.name: unknown variant `tape`, expected one of `raft`, `fs`, `bridge`"),
        ("adapter: {config: {}}", "adapter.name: missing"),
        ("adapter: {name: fs, color: red}", "adapter.color: unknown key"),
        ("adapter: {name: fs, config: {dir: x}}", "adapter.config.dir: unknown field `dir`, expected `data_dir`"),
        ("adapter: {name: fs, config: {data_dir: 5}}", "adapter.config.data_dir: invalid type"),
        ("adapter: {name: fs, config: {data_dir: ''}}", "adapter.config.data_dir: empty"),
        ("adapter: fs", "adapter: must be a mapping"),
        ("listen: nowhere", "listen: \"nowhere\" is not an address: write host:port"),
        ("default_list_limit: 0", "default_list_limit: 0 is out of bounds, give 1 to 10000"),
        ("max_list_limit: 10", "default_list_limit: 50 is more than max_list_limit (10)"),
        ("max_message_bytes: 100000000", "max_message_bytes: 100000000 is out of bounds"),
        ("outbound_total_bytes: 1048576", "outbound_queue_bytes: 33554432 is more than outbound_total_bytes"),
        ("call_timeout_ms: 0", "call_timeout_ms: 0 is out of bounds"),
        ("heartbeat_ms: 1", "heartbeat_ms: 1 is out of bounds, give 10 to 5000"),
        ("heartbeat_ms: 100", "leader_lease_ms: 135 is less than three times heartbeat_ms (100)"),
        ("election_timeout_ms: 0", "election_timeout_ms: 0 is out of bounds"),
        ("{leader_lease_ms: 9000}", "peer_timeout_ms: 2000 is less than leader_lease_ms (9000)"),
        ("- backend: fs", "the configuration must be a mapping"),
        ("a: [", "not YAML: "),
    ];
    for (text, words) in cases {
        let refused = refusal(text);
        assert!(refused.starts_with(words), "{text}\n  {refused}");
    }
}

#[test]
fn beyond_loopback_a_port_needs_tls_and_credentials() {
    for good in ["127.0.0.1:0", "127.9.9.9:5", "'[::1]:49134'", "localhost:49134"] {
        assert!(parse(&format!("listen: {good}")).is_ok(), "{good}");
    }
    for bad in ["0.0.0.0:49134", "192.168.1.5:49134", "'[::]:49134'"] {
        let refused = refusal(&format!("listen: {bad}"));
        assert!(refused.starts_with("listen: ") && refused.contains("tls_cert") && refused.contains("token_file"));
        let tls = format!("listen: {bad}\ntls_cert: c\ntls_key: k\n");
        assert!(!refusal(&tls).contains("tls_cert") && refusal(&tls).contains("token_file"));
        let auth = format!("listen: {bad}\ntoken_file: t\n");
        assert!(refusal(&auth).contains("tls_cert") && !refusal(&auth).contains("token_file"));
        parse(&format!("{tls}token_file: t")).unwrap();
        // Client certificates of the authority are credentials. Without TLS nobody can present one.
        let certified = parse(&format!("{tls}peer_ca: a")).unwrap();
        assert!(certified.credentials().certificates);
        assert!(
            refusal(&format!("listen: {bad}\ninsecure_no_tls: true\npeer_ca: a\npeer_cert: c\npeer_key: k"))
                .contains("token_file")
        );
        parse(&format!("listen: {bad}\ninsecure_no_auth: true\ninsecure_no_tls: true")).unwrap();
    }
    let peer = "peer_listen: 10.0.0.1:1\n";
    assert!(refusal(peer).starts_with("peer_listen: ") && refusal(peer).contains("peer_ca"));
    assert!(refusal(&format!("{peer}peer_ca: a")).contains("peer_cert"));
    parse(&format!("{peer}peer_ca: a\npeer_cert: c\npeer_key: k")).unwrap();
    assert!(refusal("peer_listen: 0.0.0.0:1\npeer_ca: a\npeer_cert: c\npeer_key: k").starts_with("peer_advertise: "));
    assert!(refusal("tls_cert: c").starts_with("tls_key: missing"));
    assert!(refusal("advertise: 'node-1:5'").starts_with("advertise: "));
    parse("advertise: 'wss://node-1.example:49134'").unwrap();
    for origin in ["'*'", "app.example", "'https://app.example/'", "'https://u@a'", "''"] {
        assert!(refusal(&format!("allowed_origins: [{origin}]")).starts_with("allowed_origins: "), "{origin}");
    }
    parse("allowed_origins: ['https://app.example', 'http://10.0.0.1:3000']").unwrap();
}

#[test]
fn variables_and_home_are_expanded() {
    let config = parse(
        "default_list_limit: ${LIMIT}\nmax_list_limit: ${NONE:9}\nlegacy_names: ${LEGACY}\n\
         listen: ${LISTEN:127.0.0.1:5000}\nadapter: {name: '${KIND:fs}', config: {data_dir: '~/a/${NONE:b}${NONE:}'}}",
    )
    .unwrap();
    assert_eq!((config.default_list_limit, config.max_list_limit, config.legacy_names), (7, 9, false));
    assert_eq!(config.listen.port(), 5000);
    assert_eq!(config.adapter, AdapterConfig::Fs(DataDir { data_dir: "/home/me/a/b".into() }));
    let home = parse("adapter: {name: fs, config: {data_dir: '~'}}").unwrap();
    assert_eq!(home.adapter.data_dir(), Some(Path::new("/home/me")));
}

#[test]
fn a_missing_variable_is_an_error_and_no_variable_adds_keys() {
    assert_eq!(
        refusal("adapter: {name: fs, config: {data_dir: '${NOWHERE}/x'}}"),
        "adapter.config.data_dir: the environment has no variable \"NOWHERE\": set it, or give a default: ${NOWHERE:…}"
    );
    assert!(refusal("listen: '${LISTEN'").starts_with("listen: \"${LISTEN\" has ${ without }"));
    let config = parse("adapter: {name: fs, config: {data_dir: '${TRICK}'}}").unwrap();
    assert_eq!(config.max_connections, 4096);
    let homeless = Config::from_yaml_with("adapter: {name: fs, config: {data_dir: ~/x}}", &|_| None).unwrap_err();
    assert!(homeless.to_string().contains("neither HOME nor USERPROFILE"), "{homeless}");
}

#[test]
fn the_schema_knows_every_setting_and_the_adapters_by_name() {
    let schema = Config::schema();
    let settings = serde_json::to_value(Config::default()).unwrap();
    for key in settings.as_object().unwrap().keys() {
        assert!(schema["properties"][key].is_object(), "{key}");
    }
    assert_eq!(schema["additionalProperties"], false);
    let adapters = schema["definitions"]["AdapterConfig"]["oneOf"].as_array().unwrap();
    let names: Vec<&str> = adapters.iter().map(|one| one["properties"]["name"]["enum"][0].as_str().unwrap()).collect();
    assert_eq!(names, ["raft", "fs", "bridge"]);
}
