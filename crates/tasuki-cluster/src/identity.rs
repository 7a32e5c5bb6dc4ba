//! Identity of a caller or node: the cluster, role and name in its certificate or token.

use std::fmt;
use std::str::FromStr;

use rustls::pki_types::CertificateDer;

/// Maximum length of a part of an identity; the same as of a node name.
const MAX_PART_CHARS: usize = 191;

/// Role of a peer. It determines which calls the peer may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RpcCallerRole {
    /// A node of the cluster. It may make every call, and other nodes may call it.
    Node,
    /// A client that only reads: a probe, or a person with a debugging tool.
    Observer,
}

impl RpcCallerRole {
    /// Name of the role in identities.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Observer => "observer",
        }
    }
}

impl FromStr for RpcCallerRole {
    type Err = InvalidIdentity;

    fn from_str(text: &str) -> Result<Self, InvalidIdentity> {
        match text {
            "node" => Ok(Self::Node),
            "observer" => Ok(Self::Observer),
            _ => Err(InvalidIdentity::new("the role in the identity is neither node nor observer")),
        }
    }
}

/// Identity of a node or observer. Its text form is `tasuki://<cluster>/<role>/<name>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    cluster: String,
    role: RpcCallerRole,
    name: String,
}

/// An identity is invalid, or it is not allowed here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidIdentity(String);

impl InvalidIdentity {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl Identity {
    /// Creates an identity. Cluster and name consist of letters, digits, dots, hyphens and underscores, because they are
    /// parts of URIs.
    pub fn new(cluster: &str, role: RpcCallerRole, name: &str) -> Result<Self, InvalidIdentity> {
        for (part, text) in [("cluster", cluster), ("name", name)] {
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            // A name is also used as a folder name: no hidden folder, and no path to a parent folder.
            let starts_with_dot = text.starts_with('.');
            if text.is_empty()
                || text.len() > MAX_PART_CHARS
                || starts_with_dot
                || !text.chars().all(is_allowed)
            {
                let expected =
                    "letters, digits, dots, hyphens and underscores, and not start with a dot";
                return Err(InvalidIdentity(format!("{part} {text:?} must consist of {expected}")));
            }
        }
        Ok(Self { cluster: cluster.to_owned(), role, name: name.to_owned() })
    }

    /// Name of the cluster.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Role of the owner.
    pub fn role(&self) -> RpcCallerRole {
        self.role
    }

    /// Name of the owner within the cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads the identity from a certificate. It must contain exactly one, or its owner could choose between them.
    pub(crate) fn from_certificate(der: &CertificateDer<'_>) -> Result<Self, InvalidIdentity> {
        let certificate = webpki::EndEntityCert::try_from(der)
            .map_err(|error| InvalidIdentity(format!("the certificate cannot be read: {error}")))?;
        let mut names = certificate.valid_uri_names().filter(|uri| uri.starts_with("tasuki://"));
        match (names.next(), names.next()) {
            (Some(uri), None) => uri.parse(),
            (None, _) => Err(InvalidIdentity::new("the certificate has no tasuki:// name")),
            (Some(_), Some(_)) => {
                Err(InvalidIdentity::new("the certificate has more than one tasuki:// name"))
            }
        }
    }

    /// Refuses an identity of another cluster.
    pub(crate) fn require_cluster(self, cluster: &str) -> Result<Self, InvalidIdentity> {
        if self.cluster == cluster {
            return Ok(self);
        }
        Err(InvalidIdentity(format!("{self} does not belong to the cluster {cluster}")))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tasuki://{}/{}/{}", self.cluster, self.role.as_str(), self.name)
    }
}

impl FromStr for Identity {
    type Err = InvalidIdentity;

    fn from_str(text: &str) -> Result<Self, InvalidIdentity> {
        let parts = text.strip_prefix("tasuki://").map(|rest| rest.split('/').collect::<Vec<_>>());
        match parts.as_deref() {
            Some([cluster, role, name]) => Self::new(cluster, role.parse()?, name),
            _ => Err(InvalidIdentity::new(
                "an identity must have the form tasuki://<cluster>/<role>/<name>",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_round_trips_through_text() {
        for text in ["tasuki://prod/node/pod-7.web", "tasuki://a/observer/b_c"] {
            assert_eq!(text.parse::<Identity>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_invalid_identity_is_refused() {
        let invalid = [
            "",
            "tasuki://prod/node",
            "tasuki://prod/node/a/b",
            "tasuki://prod/admin/a",
            "tasuki://prod/Node/a",
            "tasuki:///node/a",
            "tasuki://prod/node/",
            "tasuki://prod/node/..",
            "tasuki://prod/node/a%2fb",
            "tasuki://prod/node/日",
            "https://prod/node/a",
        ];
        for text in invalid {
            assert!(text.parse::<Identity>().is_err(), "{text:?}");
        }
    }
}
