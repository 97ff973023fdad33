//! Connection strings, by table and by property.

use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;

use super::*;

/// A process without any of libpq's variables.
fn bare(name: &str) -> Option<String> {
    (name == "HOME").then(|| "/nonexistent".to_owned())
}

fn parse(text: &str) -> ConnInfo {
    ConnInfo::parse_with(text, &bare).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refusal(text: &str) -> String {
    let error = ConnInfo::parse_with(text, &bare).expect_err(text);
    assert!(error.is_configuration(), "{text}: {error}");
    error.to_string()
}

fn with_env(text: &str, variables: &[(&str, &str)]) -> Result<ConnInfo, Error> {
    let variables: Vec<(String, String)> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    ConnInfo::parse_with(text, &move |name| {
        variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    })
}

fn password(info: &ConnInfo) -> Option<String> {
    info.settings().password_for(&info.settings().hosts[0], info.dbname()).unwrap()
}

#[test]
fn both_forms_describe_the_same_places() {
    for (text, expected) in [
        ("host=h port=1 dbname=d user=u", "h:1/d as u"),
        ("  host = h\tport=1\n user = 'u' dbname =d  ", "h:1/d as u"),
        (r"host=h user=u dbname='it\'s \\ here'", r"h:5432/it's \ here as u"),
        (r"host=h user=u dbname=a\ b", "h:5432/a b as u"),
        ("host=h user=u user=later", "h:5432/later as later"),
        ("host=/run/x user=u", "/run/x:5432/u as u"),
        ("host=@abstract user=u", "@abstract:5432/u as u"),
        ("hostaddr=::1 user=u", "[::1]:5432/u as u"),
        ("host=a,b port=1,2 user=u", "a:1,b:2/u as u"),
        ("host=a,b port=3 user=u", "a:3,b:3/u as u"),
        ("host=a,b port=,4 user=u", "a:5432,b:4/u as u"),
        ("host=n hostaddr=10.0.0.1 user=u", "n:5432/u as u"),
        ("postgres://u@h/d", "h:5432/d as u"),
        ("postgresql://u:p@h:1/d?sslmode=disable", "h:1/d as u"),
        ("postgresql://u@[fe80::1]:7/d", "[fe80::1]:7/d as u"),
        ("postgresql://u@a:1,b,[::1]:3/d", "a:1,b:5432,[::1]:3/d as u"),
        ("postgresql://%75%40x@h/d%2Fe", "h:5432/d/e as u@x"),
        ("postgresql://u@%2Frun%2Fpg/d", "/run/pg:5432/d as u"),
        ("postgresql:///d?host=/run/pg&user=u&port=9", "/run/pg:9/d as u"),
        ("postgresql://h?user=u", "h:5432/u as u"),
        ("postgresql://u@h:/d", "h:5432/d as u"),
        ("postgresql://u@h/?dbname=x%20y", "h:5432/x y as u"),
    ] {
        assert_eq!(parse(text).describe(), expected, "{text}");
    }
}

#[test]
fn mistakes_are_named() {
    for (text, part) in [
        ("hots=h", "\"hots\""),
        ("host", "word without \"=\""),
        ("host=h port", "word without \"=\""),
        ("user='u", "\"user\" has no end"),
        ("port=0", "\"0\" is not a port"),
        ("port=65536", "\"65536\""),
        ("host=a,b port=1,2,3", "3 ports for 2 hosts"),
        ("host=a,b hostaddr=::1", "2 hosts but 1 hostaddr"),
        ("hostaddr=db", "is not an IP address"),
        ("connect_timeout=soon", "connect_timeout"),
        ("keepalives_idle=1.5", "keepalives_idle"),
        ("sslmode=on", "one of disable, allow, prefer"),
        ("sslrootcert=system sslmode=require", "verify-full"),
        ("sslnegotiation=direct", "sslmode=require or stronger"),
        ("ssl_min_protocol_version=TLSv1.3 ssl_max_protocol_version=TLSv1.2", "ssl_max_protocol_version"),
        ("ssl_max_protocol_version=TLSv1.1", "one of TLSv1.2, TLSv1.3"),
        ("target_session_attrs=master", "prefer-standby"),
        ("require_auth=scram-sha-256,!md5", "require_auth"),
        ("require_auth=magic", "require_auth"),
        ("gssencmode=require", "GSSAPI"),
        ("requirepeer=postgres", "requirepeer"),
        ("sslpassword=x", "openssl pkey"),
        ("sslcertmode=require", "clientcert"),
        ("scram_client_key=AAAA", "give both"),
        ("scram_client_key=AAAA scram_server_key=AAAA", "32 bytes in base64"),
        ("replication=database", "replication"),
        ("client_encoding=LATIN1", "UTF8"),
        ("oauth_issuer=x", "OAuth"),
        ("min_protocol_version=3.2", "3.0"),
        ("postgres://u@[::1/d", "IPv6"),
        ("postgres://u@[]/d", "IPv6"),
        ("postgres://u@[::1]x/d", "after \"]\""),
        ("postgres://u@h/d?sslmode", "lacks its \"=\""),
        ("postgres://u@h/d?sslmode=a=b", "second \"=\""),
        ("postgres://u@h/d?no=1", "\"no\""),
        ("postgres://u@h/%zz", "percent-encoded"),
        ("postgres://u@h/%4", "percent-encoded"),
        ("postgres://u@h/%00", "percent-encoded"),
        ("postgres://u@h/%ff", "percent-encoded"),
        ("service=nowhere", "\"nowhere\" is not defined"),
    ] {
        let message = refusal(text);
        assert!(message.contains(part), "{text}: {message}");
    }
}

#[test]
fn harmless_keywords_are_accepted() {
    parse(
        "host=h sslcompression=1 krbsrvname=postgres gsslib=gssapi gssencmode=prefer gssdelegation=0 \
         client_encoding=UTF8 sslcertmode=allow max_protocol_version=latest min_protocol_version=3.0",
    );
    assert_eq!(parse("postgres://h/?ssl=true").settings().ssl.mode, SslMode::Require);
}

#[test]
fn no_message_shows_a_password() {
    for text in [
        "password=geheim",
        "password='geheim",
        "password=nicht geheim",
        "user=u password=a'b geheim",
        "postgres://u:geheim@h:port/d",
        "postgres://u:geheim@h/d?x",
        "postgres://u:%geheim@h/d",
        "postgres://u:geheim@[h/d",
        "password=geheim gssencmode=require",
    ] {
        let shown = match ConnInfo::parse_with(text, &bare) {
            Ok(info) => format!("{info} {info:?}"),
            Err(error) => format!("{error} {error:?}"),
        };
        assert!(!shown.contains("geheim"), "{shown}");
    }
    assert_eq!(password(&parse("postgres://u:p%40s%3As@h/d")).as_deref(), Some("p@s:s"));
    assert_eq!(password(&parse("postgres://u:a:b@h/d")).as_deref(), Some("a:b"));
}

#[test]
fn the_environment_fills_what_is_open() {
    let env = [
        ("PGHOST", "eh"),
        ("PGPORT", "99"),
        ("PGDATABASE", "ed"),
        ("PGUSER", "eu"),
        ("PGPASSWORD", "ep"),
        ("PGSSLMODE", "disable"),
        ("PGCONNECT_TIMEOUT", "1"),
        ("PGAPPNAME", "me"),
        ("PGOPTIONS", "-c work_mem=1MB"),
        ("PGTZ", "Europe/Berlin"),
        ("PGCLIENTENCODING", "LATIN1"),
    ];
    let info = with_env("", &env).unwrap();
    assert_eq!(info.describe(), "eh:99/ed as eu");
    assert_eq!(password(&info).as_deref(), Some("ep"));
    let settings = info.settings();
    assert_eq!(settings.ssl.mode, SslMode::Disable);
    assert_eq!(settings.connect_timeout, Some(Duration::from_secs(2)));
    assert_eq!(settings.application_name.as_deref(), Some("me"));
    assert_eq!(settings.options, "-c timezone=Europe/Berlin -c work_mem=1MB");

    let info = with_env("host=h port=1 user=u dbname=d password=p sslmode=require", &env).unwrap();
    assert_eq!(info.describe(), "h:1/d as u");
    assert_eq!(password(&info).as_deref(), Some("p"));
    assert_eq!(info.settings().ssl.mode, SslMode::Require);

    let error = with_env("", &[("PGSSLMODE", "never")]).unwrap_err().to_string();
    assert!(error.contains("PGSSLMODE") && error.contains("never"), "{error}");
    let error = with_env("", &[("PGREQUIREPEER", "x")]).unwrap_err().to_string();
    assert!(error.contains("PGREQUIREPEER"), "{error}");
    assert_eq!(with_env("", &[("PGREQUIRESSL", "1")]).unwrap().settings().ssl.mode, SslMode::Require);
}

#[test]
fn defaults_are_libpqs() {
    let info = parse("user=u");
    let settings = info.settings();
    assert!(matches!(&settings.hosts[..], [Host { address: Address::Unix(_), port: 5432 }]));
    assert_eq!(settings.ssl.mode, SslMode::Prefer);
    assert_eq!(settings.channel_binding, ChannelBinding::Prefer);
    assert_eq!(settings.connect_timeout, None);
    assert_eq!(settings.session_attrs, SessionAttrs::Any);
    assert_eq!(parse("user=u sslrootcert=system").settings().ssl.mode, SslMode::VerifyFull);
    assert_eq!(parse("user=u keepalives=0").settings().keepalives, None);
    let system = parse("user=u keepalives_idle=0 keepalives_interval=0 keepalives_count=0");
    assert_eq!(
        system.settings().keepalives,
        Some(Keepalives { idle: None, interval: None, count: None }),
        "zero is the system's default"
    );
}

#[test]
fn services_stand_between_text_and_environment() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("services");
    std::fs::write(&path, "[shop]\nhost=sh\nport=7\ndbname=sd\nuser=su\n").unwrap();
    let file = path.to_str().unwrap();
    let env = [("PGSERVICEFILE", file), ("PGHOST", "eh"), ("PGAPPNAME", "me")];
    let info = with_env("service=shop dbname=d", &env).unwrap();
    assert_eq!(info.describe(), "sh:7/d as su");
    assert_eq!(info.settings().application_name.as_deref(), Some("me"));
    let by_variable = [("PGSERVICEFILE", file), ("PGSERVICE", "shop")];
    assert_eq!(with_env("", &by_variable).unwrap().describe(), "sh:7/sd as su");
    let error = with_env("service=other", &env).unwrap_err().to_string();
    assert!(error.contains("other") && error.contains(file), "{error}");
    let error = with_env("service=x", &[("PGSERVICEFILE", "/nonexistent/f")]).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/f"), "{error}");
}

#[test]
fn the_password_file_is_asked_by_host() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pgpass");
    std::fs::write(
        &path,
        "localhost:*:d:u:socket\nn:*:d:u:name\n10.0.0.1:*:d:u:address\n/run/x:*:d:u:path\n*:*:replication:u:wal\n",
    )
    .unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let file = path.to_str().unwrap();
    for (text, expected) in [
        ("host=n", Some("name")),
        ("host=n hostaddr=10.0.0.1", Some("name")),
        ("hostaddr=10.0.0.1", Some("address")),
        ("host=/run/x", Some("path")),
        ("host=/tmp", Some("socket")),
        ("host=localhost", Some("socket")),
        ("host=other", None),
        ("host=n password=own", Some("own")),
    ] {
        let info = with_env(&format!("{text} user=u dbname=d"), &[("PGPASSFILE", file)]).unwrap();
        assert_eq!(password(&info).as_deref(), expected, "{text}");
    }
    let info = with_env("host=other user=u dbname=d", &[("PGPASSFILE", file)]).unwrap();
    let host = &info.settings().hosts[0];
    assert_eq!(info.settings().password_for(host, "replication").unwrap().as_deref(), Some("wal"));
    // In the home directory when no variable says otherwise.
    std::fs::rename(&path, directory.path().join(".pgpass")).unwrap();
    let home = directory.path().to_str().unwrap();
    let info = with_env("host=n user=u dbname=d", &[("HOME", home)]).unwrap();
    assert_eq!(password(&info).as_deref(), Some("name"));
}

#[test]
fn require_auth_lists() {
    let allows = |text: &str, method| parse(text).settings().require_auth.allows(method);
    assert!(allows("user=u", AuthMethod::Password));
    assert!(allows("require_auth=scram-sha-256,md5", AuthMethod::Md5));
    assert!(!allows("require_auth=scram-sha-256", AuthMethod::None));
    assert!(!allows("require_auth=!password,!md5", AuthMethod::Password));
    assert!(allows("require_auth=!password,!md5", AuthMethod::ScramSha256));
    assert!(!allows("require_auth=gss", AuthMethod::Password));
}

#[test]
fn settings_are_escaped_for_the_options() {
    let mut options = String::from("-c a=b");
    add_setting(&mut options, "search_path", "");
    add_setting(&mut options, "datestyle", "ISO, MDY");
    add_setting(&mut options, "x.y", r"back\slash");
    assert_eq!(options, r"-c a=b -c search_path= -c datestyle=ISO,\ MDY -c x.y=back\\slash");
}

/// A value as a careful person writes it.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', r"\\").replace('\'', r"\'"))
}

fn percent(value: &str) -> String {
    value.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

proptest! {
    #[test]
    fn any_value_survives_quoting(value in "[^\0]{1,40}", password_value in "[^\0]{1,40}") {
        let text = format!("host=h user={} password = {} dbname=d", quoted(&value), quoted(&password_value));
        let info = parse(&text);
        prop_assert_eq!(info.user(), value.as_str());
        prop_assert_eq!(password(&info), Some(password_value));
    }

    #[test]
    fn any_value_survives_backslashes(value in "[^\0]{1,40}") {
        let escaped: String = value.chars().flat_map(|c| ['\\', c]).collect();
        let info = parse(&format!("dbname={escaped} user=u"));
        prop_assert_eq!(info.dbname(), value.as_str());
    }

    #[test]
    fn any_value_survives_percent_encoding(user in "[^\0]{1,20}", secret in "[^\0]{1,20}", dbname in "[^\0]{1,20}") {
        let info = parse(&format!("postgresql://{}:{}@h/{}", percent(&user), percent(&secret), percent(&dbname)));
        prop_assert_eq!(info.user(), user.as_str());
        prop_assert_eq!(info.dbname(), dbname.as_str());
        prop_assert_eq!(password(&info), Some(secret.clone()));
        let info = parse(&format!("postgresql://h?user={}&password={}", percent(&user), percent(&secret)));
        prop_assert_eq!(info.user(), user.as_str());
        prop_assert_eq!(password(&info), Some(secret));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,60}", scheme in prop::bool::ANY) {
        let text = if scheme { format!("postgres://{text}") } else { text };
        let _ = ConnInfo::parse_with(&text, &bare);
    }
}

#[test]
fn libpq_is_told_everything_but_the_password() {
    let info = with_env(
        r"postgres://me:pa%20ss@h1:1,h2:2/my%27db?sslmode=require&options=-c%20a%3Db",
        &[("PGREQUIREAUTH", "scram-sha-256"), ("PGCONNECT_TIMEOUT", "7")],
    )
    .unwrap();
    let told = info.for_libpq();
    assert_eq!(told.password.as_deref(), Some("pa ss"));
    assert!(!told.conninfo.contains("pa ss"), "{}", told.conninfo);
    // What the environment says reaches the program without us.
    assert!(!told.conninfo.contains("require_auth") && !told.conninfo.contains('7'), "{}", told.conninfo);
    // Read again, it is the same.
    let again = parse(&told.conninfo);
    assert_eq!(again.describe(), info.describe());
    assert_eq!(again.settings().options, info.settings().options);
    assert_eq!(again.settings().ssl.mode, info.settings().ssl.mode);
    assert_eq!(password(&again), None);
    // The directory of the socket is named also where it was left out.
    assert!(parse("dbname=d").for_libpq().conninfo.contains("host='/"));
}
