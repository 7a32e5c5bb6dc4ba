//! Connection parameters of Redis, parsed from a URL. The URL contains passwords, so no part of it is ever printed.

use std::fmt;
use std::str::FromStr;

use ::redis::io::tcp::TcpSettings;
use ::redis::{
    Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisResult,
    TlsCertificates,
};
use tasuki_core::InvalidInput;

const FIELD_NAME: &str = "redis address";
const EXPECTED_FORMS: &str =
    "redis://HOST:PORT/DB, redis+sentinel://HOST:PORT,…/NAME or redis+cluster://HOST:PORT,…";
const MAX_PREFIX_CHARS: usize = 64;

/// Setup of Redis. It determines how the primary is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Topology {
    /// One server.
    Standalone,
    /// Sentinels that monitor a primary with this name.
    Sentinel(String),
    /// A Redis Cluster; each node knows which one has our keys.
    Cluster,
}

/// Host name and port of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) port: u16,
}

/// Connection parameters of Redis, parsed from a URL.
///
/// ```
/// use tasuki_cluster::redis::RedisConfig;
///
/// for address in [
///     "redis://127.0.0.1:6379/0",
///     "rediss://tasuki:secret@redis.example:6380",
///     "redis+sentinel://:secret@one:26379,two:26379,three:26379/main/0?sentinel_password=other",
///     "redis+cluster://one:6379,two:6379,three:6379",
/// ] {
///     let config: RedisConfig = address.parse().expect("the address has one of the supported forms");
///     assert!(!format!("{config:?}").contains("secret"));
/// }
/// ```
///
/// With the scheme `rediss` instead of `redis`, all connections use TLS. User and password are those of the data servers.
/// Those of the sentinels, if they need any, are the options `sentinel_user` and `sentinel_password`. Characters that have a
/// special meaning in a URL must be percent-encoded in all four.
#[derive(Clone)]
pub struct RedisConfig {
    pub(super) topology: Topology,
    pub(super) hosts: Vec<Host>,
    tls: bool,
    login: RedisConnectionInfo,
    sentinel_login: RedisConnectionInfo,
    certificates: TlsCertificates,
    pub(super) prefix: String,
}

impl RedisConfig {
    /// Sets the prefix of all keys, by default `tasuki`. Different prefixes let several clusters share one Redis.
    pub fn with_prefix(mut self, prefix: &str) -> Result<Self, InvalidInput> {
        let is_allowed_length = (1..=MAX_PREFIX_CHARS).contains(&prefix.len());
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
        // A brace would end the hash tag that keeps our keys together on one node of a cluster.
        if !is_allowed_length || !prefix.chars().all(is_allowed) {
            let expected = "up to 64 letters, digits, and any of _ - . :";
            return Err(InvalidInput::with_value("redis prefix", prefix, expected));
        }
        prefix.clone_into(&mut self.prefix);
        Ok(self)
    }

    /// Sets the trusted certificates (PEM) for TLS. By default those of the operating system are trusted.
    pub fn with_ca_certificates(mut self, roots: impl Into<Vec<u8>>) -> Self {
        self.certificates.root_cert = Some(roots.into());
        self
    }

    /// Sets the client certificate and its key (both PEM) for servers that require one.
    pub fn with_client_certificate(
        mut self,
        chain: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates.client_tls =
            Some(ClientTlsConfig { client_cert: chain.into(), client_key: key.into() });
        self
    }

    /// Client for a data server.
    pub(super) fn client(&self, host: &Host) -> RedisResult<Client> {
        self.client_with_login(host, &self.login)
    }

    /// Client for a sentinel.
    pub(super) fn sentinel_client(&self, host: &Host) -> RedisResult<Client> {
        self.client_with_login(host, &self.sentinel_login)
    }

    /// Passwords, which must not appear in any message.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &str> {
        let passwords = [self.login.password(), self.sentinel_login.password()];
        passwords.into_iter().flatten().filter(|password| !password.is_empty())
    }

    fn client_with_login(&self, host: &Host, login: &RedisConnectionInfo) -> RedisResult<Client> {
        let (name, port) = (host.name.clone(), host.port);
        let address = match self.tls {
            true => ConnectionAddr::TcpTls { host: name, port, insecure: false, tls_params: None },
            false => ConnectionAddr::Tcp(name, port),
        };
        let info = address
            .into_connection_info()?
            .set_tcp_settings(TcpSettings::default().set_nodelay(true))
            .set_redis_settings(login.clone());
        match self.tls {
            true => Client::build_with_tls(info, self.certificates.clone()),
            false => Client::open(info),
        }
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("topology", &self.topology)
            .field("hosts", &self.hosts)
            .field("tls", &self.tls)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl FromStr for RedisConfig {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| invalid_url("no scheme"))?;
        let (tls, kind) = match scheme.strip_prefix("rediss") {
            Some(kind) => (true, kind),
            None => (
                false,
                scheme.strip_prefix("redis").ok_or_else(|| invalid_url("an unknown scheme"))?,
            ),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (topology, database) = match (kind, path.split_once('/').unwrap_or((path, ""))) {
            ("", (database, "")) => (Topology::Standalone, database),
            ("+cluster", ("", "" | "0")) | ("+cluster", ("0", "")) => (Topology::Cluster, ""),
            ("+cluster", _) => {
                return Err(invalid_url("a database number; a Redis Cluster has only database 0"));
            }
            ("+sentinel", ("", _)) => {
                return Err(invalid_url("no name of the primary for the sentinels"));
            }
            ("+sentinel", (name, database)) => (Topology::Sentinel(name.to_owned()), database),
            ("", _) => return Err(invalid_url("a path with more than one part")),
            _ => return Err(invalid_url("an unknown scheme")),
        };
        let default_port = if matches!(topology, Topology::Sentinel(_)) { 26379 } else { 6379 };
        let hosts: Vec<Host> = hosts
            .split(',')
            .map(|host| parse_host(host, default_port))
            .collect::<Result<_, _>>()?;
        if topology == Topology::Standalone && hosts.len() > 1 {
            return Err(invalid_url("several hosts without +sentinel or +cluster"));
        }
        let sentinel_login = match (query, &topology) {
            ("", _) => RedisConnectionInfo::default(),
            (query, Topology::Sentinel(_)) => parse_login(&sentinel_user_info(query)?, "")?,
            (_, Topology::Standalone | Topology::Cluster) => {
                return Err(invalid_url("an unknown option"));
            }
        };
        Ok(Self {
            topology,
            hosts,
            tls,
            login: parse_login(user, database)?,
            sentinel_login,
            certificates: TlsCertificates { client_tls: None, root_cert: None },
            prefix: "tasuki".to_owned(),
        })
    }
}

/// Describes an invalid part without quoting it, because it may contain a password.
fn invalid_url(found: &str) -> InvalidInput {
    InvalidInput::with_described_value(FIELD_NAME, found, EXPECTED_FORMS)
}

fn parse_host(text: &str, default_port: u16) -> Result<Host, InvalidInput> {
    let (name, port) = match text.rsplit_once(':') {
        // An IPv6 address is in brackets, so its last colon is not the one before a port.
        Some((name, port)) if !port.ends_with(']') => {
            (name, port.parse().map_err(|_| invalid_url("an invalid port"))?)
        }
        _ => (text, default_port),
    };
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    if name.is_empty() || port == 0 || name.contains(['[', ']', '#', ' ']) {
        return Err(invalid_url("an invalid host"));
    }
    Ok(Host { name: name.to_owned(), port })
}

/// Parses user, password and database with the library, from a URL with a placeholder as host.
fn parse_login(user: &str, database: &str) -> Result<RedisConnectionInfo, InvalidInput> {
    let at = if user.is_empty() { "" } else { "@" };
    if user.contains(['/', '#']) || database.contains(['/', '#']) {
        return Err(invalid_url("a / or # that is not percent-encoded"));
    }
    let url = format!("redis://{user}{at}host/{database}");
    let info = url.into_connection_info();
    let info = info.map_err(|_| invalid_url("an invalid user, password or database"))?;
    Ok(info.redis_settings().clone())
}

/// Converts `sentinel_user=…&sentinel_password=…` to the form `user:password`.
fn sentinel_user_info(query: &str) -> Result<String, InvalidInput> {
    let (mut user, mut password) = ("", "");
    for option in query.split('&') {
        match option.split_once('=') {
            Some(("sentinel_user", value)) => user = value,
            Some(("sentinel_password", value)) => password = value,
            _ => return Err(invalid_url("an unknown option")),
        }
    }
    if user.contains(['@', ':']) || password.contains(['@', ':']) {
        return Err(invalid_url("a @ or : that is not percent-encoded"));
    }
    Ok(format!("{user}:{password}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> RedisConfig {
        text.parse().unwrap()
    }

    fn hosts(config: &RedisConfig) -> Vec<(&str, u16)> {
        config.hosts.iter().map(|host| (host.name.as_str(), host.port)).collect()
    }

    #[test]
    fn an_address_of_one_server_is_parsed() {
        let config = parse("redis://ann:p%40ss@cache.example:7000/3");
        assert_eq!(config.topology, Topology::Standalone);
        assert_eq!(hosts(&config), [("cache.example", 7000)]);
        assert_eq!(config.login.username(), Some("ann"));
        assert_eq!(config.login.password(), Some("p@ss"));
        assert_eq!((config.login.db(), config.tls), (3, false));
        let config = parse("rediss://[::1]");
        assert_eq!(hosts(&config), [("::1", 6379)]);
        assert_eq!((config.login.password(), config.tls), (None, true));
    }

    #[test]
    fn data_servers_and_sentinels_have_separate_logins() {
        let config = parse("redis+sentinel://:data@a:1,b,[::2]:3/main/2?sentinel_password=watch");
        assert_eq!(config.topology, Topology::Sentinel("main".to_owned()));
        assert_eq!(hosts(&config), [("a", 1), ("b", 26379), ("::2", 3)]);
        assert_eq!((config.login.password(), config.login.db()), (Some("data"), 2));
        assert_eq!(config.sentinel_login.password(), Some("watch"));
        assert_eq!(parse("redis+sentinel://:data@a/main").sentinel_login.password(), None);
    }

    #[test]
    fn an_address_of_a_cluster_is_parsed() {
        let config = parse("rediss+cluster://a:1,b:2");
        assert_eq!(config.topology, Topology::Cluster);
        assert_eq!((hosts(&config), config.tls), (vec![("a", 1), ("b", 2)], true));
    }

    #[test]
    fn an_error_message_contains_no_part_of_the_address() {
        for text in [
            "",
            "secret",
            "http://secret@a",
            "redis+other://:secret@a",
            "redis://:secret@a:port",
            "redis://:secret@a:0",
            "redis://:secret@",
            "redis://:secret@a,b",
            "redis://:secret@a/none",
            "redis://:secret@a/1/2",
            "redis://:secret@a?protocol=resp3",
            "redis://:secret@a/#insecure",
            "redis+cluster://:secret@a/1",
            "redis+sentinel://:secret@a",
            "redis+sentinel://:secret@a/main?password=secret",
            "redis+sentinel://a/main?sentinel_password=se@cret",
        ] {
            let error = text.parse::<RedisConfig>().unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn debug_output_contains_no_password() {
        let config = parse("redis+sentinel://u:secret@a/main?sentinel_password=secret");
        assert!(!format!("{config:?}").contains("secret"));
        assert_eq!(config.secrets().collect::<Vec<_>>(), ["secret", "secret"]);
        let config = parse("redis+sentinel://u:@a/main?sentinel_user=u");
        assert_eq!(config.secrets().count(), 0, "every message contains the empty string");
    }

    #[test]
    fn a_prefix_that_would_end_the_hash_tag_is_refused() {
        for prefix in ["", "a}b", "a{b", "a b", &"x".repeat(65)] {
            assert!(parse("redis://a").with_prefix(prefix).is_err(), "{prefix}");
        }
        assert_eq!(parse("redis://a").prefix, "tasuki");
        assert_eq!(parse("redis://a").with_prefix("east:1").unwrap().prefix, "east:1");
    }
}
