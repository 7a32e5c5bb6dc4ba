//! Where Redis is, read from one line of text. A password is in there: nothing of it is ever printed.

use std::fmt;
use std::str::FromStr;

use ::redis::io::tcp::TcpSettings;
use ::redis::{
    Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisResult,
    TlsCertificates,
};
use tasuki_core::Invalid;

const FIELD: &str = "redis address";
const FORMS: &str =
    "redis://HOST:PORT/DB, redis+sentinel://HOST:PORT,…/NAME or redis+cluster://HOST:PORT,…";
const PREFIX_CHARS: usize = 64;

/// How Redis is set up, and with it how its primary is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Topology {
    /// One server.
    Standalone,
    /// Sentinels, which know the server that goes by this name.
    Sentinel(String),
    /// Nodes, which know who has our keys.
    Cluster,
}

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) port: u16,
}

/// How to reach Redis.
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
///     let config: RedisConfig = address.parse().expect("it is one of the forms");
///     assert!(!format!("{config:?}").contains("secret"));
/// }
/// ```
///
/// With `rediss` in place of `redis` all connections are made over TLS. User and password are those of the
/// servers that keep data; those of the sentinels, if they ask for any, are `sentinel_user` and
/// `sentinel_password`. What has a meaning of its own in a URL is percent-encoded in all four.
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
    /// Puts all keys under this prefix in place of `tasuki`, so that clusters can share a Redis.
    pub fn with_prefix(mut self, prefix: &str) -> Result<Self, Invalid> {
        let fits = (1..=PREFIX_CHARS).contains(&prefix.len());
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
        // A brace would end the hash tag that keeps our keys together on one node of a cluster.
        if !fits || !prefix.chars().all(plain) {
            let expected = "up to 64 letters, digits, and any of _ - . :";
            return Err(Invalid::typed("redis prefix", prefix, expected));
        }
        prefix.clone_into(&mut self.prefix);
        Ok(self)
    }

    /// Trusts these certificates (PEM) in place of the machine's, where the address asks for TLS.
    pub fn trusting(mut self, roots: impl Into<Vec<u8>>) -> Self {
        self.certificates.root_cert = Some(roots.into());
        self
    }

    /// Shows this certificate with its key (both PEM) to servers that ask for one.
    pub fn identified_by(mut self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.certificates.client_tls =
            Some(ClientTlsConfig { client_cert: chain.into(), client_key: key.into() });
        self
    }

    /// Somebody who can connect to a server that keeps data.
    pub(super) fn client(&self, host: &Host) -> RedisResult<Client> {
        self.client_as(host, &self.login)
    }

    /// Somebody who can connect to a sentinel.
    pub(super) fn sentinel(&self, host: &Host) -> RedisResult<Client> {
        self.client_as(host, &self.sentinel_login)
    }

    /// What may stand in no message.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &str> {
        let passwords = [self.login.password(), self.sentinel_login.password()];
        passwords.into_iter().flatten().filter(|password| !password.is_empty())
    }

    fn client_as(&self, host: &Host, login: &RedisConnectionInfo) -> RedisResult<Client> {
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
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| refused("no scheme"))?;
        let (tls, kind) = match scheme.strip_prefix("rediss") {
            Some(kind) => (true, kind),
            None => (false, scheme.strip_prefix("redis").ok_or_else(|| refused("another scheme"))?),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (place, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = place.rsplit_once('@').unwrap_or(("", place));
        let (topology, database) = match (kind, path.split_once('/').unwrap_or((path, ""))) {
            ("", (database, "")) => (Topology::Standalone, database),
            ("+cluster", ("", "" | "0")) | ("+cluster", ("0", "")) => (Topology::Cluster, ""),
            ("+cluster", _) => return Err(refused("a database, of which a cluster has only one")),
            ("+sentinel", ("", _)) => return Err(refused("no name for the sentinels to look up")),
            ("+sentinel", (name, database)) => (Topology::Sentinel(name.to_owned()), database),
            ("", _) => return Err(refused("a longer path")),
            _ => return Err(refused("another scheme")),
        };
        let default_port = if matches!(topology, Topology::Sentinel(_)) { 26379 } else { 6379 };
        let hosts: Vec<Host> =
            hosts.split(',').map(|host| read_host(host, default_port)).collect::<Result<_, _>>()?;
        if topology == Topology::Standalone && hosts.len() > 1 {
            return Err(refused("several hosts, but neither +sentinel nor +cluster"));
        }
        let sentinel_login = match (query, &topology) {
            ("", _) => RedisConnectionInfo::default(),
            (query, Topology::Sentinel(_)) => read_login(&sentinel_user(query)?, "")?,
            (_, Topology::Standalone | Topology::Cluster) => {
                return Err(refused("an option that is not known"));
            }
        };
        Ok(Self {
            topology,
            hosts,
            tls,
            login: read_login(user, database)?,
            sentinel_login,
            certificates: TlsCertificates { client_tls: None, root_cert: None },
            prefix: "tasuki".to_owned(),
        })
    }
}

/// What is refused is described and not quoted: there may be a password in it.
fn refused(found: &str) -> Invalid {
    Invalid::described(FIELD, found, FORMS)
}

fn read_host(text: &str, default_port: u16) -> Result<Host, Invalid> {
    let (name, port) = match text.rsplit_once(':') {
        // The colons of an IPv6 address stand in brackets.
        Some((name, port)) if !port.ends_with(']') => {
            (name, port.parse().map_err(|_| refused("a port that is no number"))?)
        }
        _ => (text, default_port),
    };
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    if name.is_empty() || port == 0 || name.contains(['[', ']', '#', ' ']) {
        return Err(refused("a host that is none"));
    }
    Ok(Host { name: name.to_owned(), port })
}

/// The library knows how user, password and database are written; the host is nobody's.
fn read_login(user: &str, database: &str) -> Result<RedisConnectionInfo, Invalid> {
    let at = if user.is_empty() { "" } else { "@" };
    if user.contains(['/', '#']) || database.contains(['/', '#']) {
        return Err(refused("a / or # that is not percent-encoded"));
    }
    let url = format!("redis://{user}{at}host/{database}");
    let info = url.into_connection_info();
    let info = info.map_err(|_| refused("a user, password or database that cannot be read"))?;
    Ok(info.redis_settings().clone())
}

/// `sentinel_user=…&sentinel_password=…` as it would stand before a host.
fn sentinel_user(query: &str) -> Result<String, Invalid> {
    let (mut user, mut password) = ("", "");
    for option in query.split('&') {
        match option.split_once('=') {
            Some(("sentinel_user", value)) => user = value,
            Some(("sentinel_password", value)) => password = value,
            _ => return Err(refused("an option that is not known")),
        }
    }
    if user.contains(['@', ':']) || password.contains(['@', ':']) {
        return Err(refused("a @ or : that is not percent-encoded"));
    }
    Ok(format!("{user}:{password}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> RedisConfig {
        text.parse().unwrap()
    }

    fn hosts(config: &RedisConfig) -> Vec<(&str, u16)> {
        config.hosts.iter().map(|host| (host.name.as_str(), host.port)).collect()
    }

    #[test]
    fn one_server() {
        let config = read("redis://ann:p%40ss@cache.example:7000/3");
        assert_eq!(config.topology, Topology::Standalone);
        assert_eq!(hosts(&config), [("cache.example", 7000)]);
        assert_eq!(config.login.username(), Some("ann"));
        assert_eq!(config.login.password(), Some("p@ss"));
        assert_eq!((config.login.db(), config.tls), (3, false));
        let config = read("rediss://[::1]");
        assert_eq!(hosts(&config), [("::1", 6379)]);
        assert_eq!((config.login.password(), config.tls), (None, true));
    }

    #[test]
    fn sentinels_have_a_login_of_their_own() {
        let config = read("redis+sentinel://:data@a:1,b,[::2]:3/main/2?sentinel_password=watch");
        assert_eq!(config.topology, Topology::Sentinel("main".to_owned()));
        assert_eq!(hosts(&config), [("a", 1), ("b", 26379), ("::2", 3)]);
        assert_eq!((config.login.password(), config.login.db()), (Some("data"), 2));
        assert_eq!(config.sentinel_login.password(), Some("watch"));
        assert_eq!(read("redis+sentinel://:data@a/main").sentinel_login.password(), None);
    }

    #[test]
    fn a_cluster() {
        let config = read("rediss+cluster://a:1,b:2");
        assert_eq!(config.topology, Topology::Cluster);
        assert_eq!((hosts(&config), config.tls), (vec![("a", 1), ("b", 2)], true));
    }

    #[test]
    fn what_is_refused_is_not_quoted() {
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
            let refused = text.parse::<RedisConfig>().unwrap_err();
            assert!(!refused.to_string().contains("secret"), "{refused}");
        }
    }

    #[test]
    fn nothing_secret_is_printed() {
        let config = read("redis+sentinel://u:secret@a/main?sentinel_password=secret");
        assert!(!format!("{config:?}").contains("secret"));
        assert_eq!(config.secrets().collect::<Vec<_>>(), ["secret", "secret"]);
        let config = read("redis+sentinel://u:@a/main?sentinel_user=u");
        assert_eq!(config.secrets().count(), 0, "an empty one would be found in every message");
    }

    #[test]
    fn a_prefix_stays_inside_its_hash_tag() {
        for prefix in ["", "a}b", "a{b", "a b", &"x".repeat(65)] {
            assert!(read("redis://a").with_prefix(prefix).is_err(), "{prefix}");
        }
        assert_eq!(read("redis://a").prefix, "tasuki");
        assert_eq!(read("redis://a").with_prefix("east:1").unwrap().prefix, "east:1");
    }
}
