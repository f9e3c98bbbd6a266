use std::fs;

use super::*;

/// The rules that count.
const RULES: PropertyRules = PropertyRules {
    is_secret: crate::kafka::client_config::is_secret,
    check: crate::kafka::client_config::check_connection,
};

fn sources(file: &str, environment: &[(&str, &str)], flags: &[(&str, &str)]) -> Sources {
    let owned = |pairs: &[(&str, &str)]| {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    };
    Sources {
        flags: owned(flags),
        environment: owned(environment),
        file: Some(ConfigFile {
            path: PathBuf::from("handover.toml"),
            text: Ok(file.to_owned()),
        }),
    }
}

fn load(sources: &Sources) -> Result<Config, InvalidConfig> {
    Config::load(sources, RULES)
}

const URL: (&str, &str) = ("HANDOVER_STORE_URL", "postgres://u:hush@localhost/d");

#[test]
fn the_smallest_configuration_gets_its_defaults() {
    let config = load(&sources("", &[URL], &[])).unwrap();
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.server.public_url, None);
    assert_eq!(config.server.shutdown_grace, Duration::from_secs(30));
    assert_eq!(config.store.max_connections, 10);
    assert!(config.store.migrate_at_start);
    assert_eq!(config.lease.ttl, Duration::from_secs(10));
    assert_eq!(config.log.format, LogFormat::Auto);
    assert!(!config.instance.id.is_empty());
    assert!(config.connections.is_empty());
}

#[test]
fn a_flag_counts_before_the_environment_before_the_file() {
    let file = "[server]\nlisten = \"127.0.0.1:1\"\nread_only = true\n[lease]\nttl = \"20s\"";
    let environment = [
        URL,
        ("HANDOVER_SERVER_LISTEN", "127.0.0.1:2"),
        ("HANDOVER_LEASE_TTL", "30s"),
    ];
    let config = load(&sources(
        file,
        &environment,
        &[("server.listen", "[::1]:3")],
    ))
    .unwrap();
    assert_eq!(config.server.listen.to_string(), "[::1]:3");
    assert_eq!(config.lease.ttl, Duration::from_secs(30));
    assert!(config.server.read_only);
    let shown = config.to_string();
    for line in [
        "listen = \"[::1]:3\"                       # flag --server-listen",
        "public_url = \"http://[::1]:3\"            # default",
        "ttl = \"30s\"                              # environment HANDOVER_LEASE_TTL",
        "read_only = true\n",
    ] {
        assert!(shown.contains(line), "{line} is missing in\n{shown}");
    }
}

#[test]
fn every_fault_is_reported_at_once_with_key_remedy_and_source() {
    let file = r#"
        [server]
        listen = "0.0.0.0:8080"
        public_url = "handover.example"
        read_only = "yes"
        shutdown_grace = "soon"
        publik_url = "x"

        [store]
        max_connections = 1

        [instance]
        id = "no spaces please"
        lock_dir = "run/handover"

        [lease]
        ttl = "2m"

        [logs]
        format = "xml"

        [connections.main]
        type = "kafka"
        bootstrap_servers = "broker"
        bootstrap_server = "broker:9092"
        [connections.main.properties]
        security.protocol = "CARRIER_PIGEON"
        enable.ssl.certificate.verification = false
        sasl.password = "hush-literal"
        plugin.library.paths = "x.so"
        ssl.ca.location = { env = "UNSET" }
        [connections.Main]
        type = "kafka"
        bootstrap_servers = "broker:9092"
        [connections.lake]
        type = "s3"
        [connections.nameless]
        url = "postgres://u:hush@localhost/d"
        [connections.warehouse]
        type = "postgres"
        urll = "postgres://u:hush@localhost/d"
        [connections.annex]
        type = "postgres"
        url = "mysql://u:hush@localhost/d"
        [connections.cellar]
        type = "postgres"
        url = { env = "UNSET" }
        [connections.attic]
        type = "postgres"
        url = "postgres://u:hush@localhost/d?sslmode=perhaps"
    "#;
    let environment = [
        ("HANDOVER_LOG_FILTER", "inof"),
        ("HANDOVER_SERVER_LISTN", "x"),
    ];
    let faults = load(&sources(
        file,
        &environment,
        &[("metrics.per_partition", "maybe")],
    ))
    .unwrap_err();
    insta::assert_snapshot!(faults);
    assert!(!format!("{faults:?}").contains("hush"));
}

#[test]
fn a_file_that_is_no_toml_is_named_by_line_and_never_quoted() {
    let text = "[store]\nurl = \"postgres://u:hush@h/d\" oops\n";
    let faults = load(&sources(text, &[], &[])).unwrap_err();
    assert_eq!(faults.0.len(), 1);
    let message = faults.to_string();
    assert!(message.contains("line 2"), "{message}");
    assert!(!message.contains("hush"), "{message}");
}

#[test]
fn a_file_that_cannot_be_read_is_a_fault() {
    let folder = tempfile::tempdir().unwrap();
    let sources = Sources {
        file: Some(ConfigFile::read(folder.path().join("absent.toml"))),
        ..Sources::default()
    };
    let message = load(&sources).unwrap_err().to_string();
    assert!(
        message.contains("absent.toml") && message.contains("cannot be read"),
        "{message}"
    );
}

#[test]
fn secrets_are_fetched_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    fs::write(&password, "hush-file\n").unwrap();
    let file = format!(
        "[store]\nurl = {{ env = \"DATABASE\" }}\n\
         [connections.warehouse]\ntype = \"postgres\"\nurl = {{ env = \"DATABASE\" }}\n\
         [connections.annex]\ntype = \"postgres\"\nurl = \"postgres://w:hush-annex@localhost/a\"\n\
         [connections.main]\ntype = \"kafka\"\nbootstrap_servers = \"a:1, b:2\"\n\
         properties = {{ \"sasl.password\" = {{ file = \"{}\" }}, socket.timeout.ms = 5000 }}",
        password.display()
    );
    let environment = [("DATABASE", "postgres://u:hush-url@localhost/d")];
    let config = load(&sources(&file, &environment, &[])).unwrap();
    assert_eq!(
        config.store.url.expose(),
        "postgres://u:hush-url@localhost/d"
    );
    let main = config.connections["main"].kafka().unwrap();
    assert_eq!(main.bootstrap_servers, "a:1,b:2");
    assert_eq!(main.properties["sasl.password"].expose(), "hush-file");
    assert_eq!(main.properties["socket.timeout.ms"].expose(), "5000");
    let url = |name: &str| config.connections[name].postgres().unwrap().url.expose();
    assert_eq!(url("warehouse"), "postgres://u:hush-url@localhost/d");
    assert_eq!(url("annex"), "postgres://w:hush-annex@localhost/a");
    let shown = config.to_string();
    for line in [
        "[connections.warehouse]\ntype = \"postgres\"\nurl = { env = \"DATABASE\" }\n",
        "[connections.annex]\ntype = \"postgres\"\nurl = \"postgres://w:***@localhost/a\"\n",
    ] {
        assert!(shown.contains(line), "{line} is missing in\n{shown}");
    }
    for shown in [
        config.to_string(),
        format!("{config:?}"),
        format!("{config:#?}"),
    ] {
        assert!(!shown.contains("hush"), "{shown}");
    }
    assert!(config.to_string().contains("postgres://u:***@localhost/d"));
    assert!(config.to_string().contains("\"sasl.password\" = { file = "));
}

#[test]
fn what_is_shown_can_be_loaded_again_and_means_the_same() {
    let file = "[store]\nurl = \"postgres://u@localhost/d\"\n[metrics]\nper_partition = true\n\
                [connections.target]\ntype = \"postgres\"\nurl = \"postgres://u@localhost/d\"\n\
                [connections.main]\ntype = \"kafka\"\nbootstrap_servers = \"a:1\"\n\
                [connections.main.properties]\nsecurity.protocol = \"SSL\"";
    let config = load(&sources(file, &[], &[])).unwrap();
    let again = load(&sources(&config.to_string(), &[], &[])).unwrap();
    assert_eq!(again.connections, config.connections);
    assert_eq!(again.metrics, config.metrics);
    assert_eq!(again.store, config.store);
    assert_eq!(again.instance, config.instance);
}

#[test]
fn a_url_given_elsewhere_makes_the_reference_of_the_file_unneeded() {
    let file = "[store]\nurl = { env = \"UNSET\" }";
    assert!(load(&sources(file, &[URL], &[])).is_ok());
    let faults = load(&sources(file, &[], &[])).unwrap_err();
    assert_eq!(faults.0[0].key, "store.url");
    assert!(faults.0[0].message.contains("UNSET"));
}

#[test]
fn only_loopback_addresses_are_listened_on() {
    for good in [
        "127.0.0.1:0",
        "127.8.8.8:80",
        "[::1]:8080",
        "localhost:8080",
    ] {
        assert!(loopback(good).is_ok(), "{good}");
    }
    for bad in [
        "0.0.0.0:80",
        "[::]:80",
        "192.0.2.1:80",
        "127.0.0.1",
        "example.org:80",
        "",
    ] {
        assert!(loopback(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_misspelt_level_is_no_filter() {
    for good in [
        "info",
        "warn,handover::kafka=debug",
        "off",
        "[job{job.name=orders}]=debug,info",
    ] {
        assert_eq!(check_filter(good).as_deref(), Ok(good));
    }
    for bad in ["inof", "", "info,", "handover::kafka=loud"] {
        assert!(check_filter(bad).is_err(), "{bad}");
    }
}

#[test]
fn the_example_file_is_a_whole_configuration() {
    let text = include_str!("../../examples/handover.toml");
    let environment = [
        ("HANDOVER_DATABASE_URL", "postgres://u@localhost/d"),
        ("WAREHOUSE_URL", "postgres://w@localhost/d"),
        ("KAFKA_USER", "u"),
        ("KAFKA_PASSWORD", "hush"),
    ];
    let config = load(&sources(text, &environment, &[]));
    assert_eq!(config.map(|config| config.connections.len()), Ok(3));
    for setting in setting::SETTINGS {
        let line = format!("\n# {} = ", setting.key);
        let plain = format!("\n{} = ", setting.key);
        assert!(
            text.contains(&format!("\n[{}]", setting.section))
                && (text.contains(&line) || text.contains(&plain)),
            "{} is not in the example",
            setting.name()
        );
    }
}
