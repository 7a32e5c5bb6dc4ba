//! Who calls: the cluster, the role and the name that a certificate or a token vouches for.

use std::fmt;
use std::str::FromStr;

use rustls::pki_types::CertificateDer;

/// The longest a part of an identity may be; as long as a node's name.
const PART_CHARS: usize = 191;

/// What somebody may ask of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerRole {
    /// A node of the cluster. It may call everything, and be called.
    Node,
    /// Somebody who looks: probes, and people with a debugging tool.
    Observer,
}

impl PeerRole {
    /// As it is written everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Observer => "observer",
        }
    }
}

impl FromStr for PeerRole {
    type Err = WrongIdentity;

    fn from_str(written: &str) -> Result<Self, WrongIdentity> {
        match written {
            "node" => Ok(Self::Node),
            "observer" => Ok(Self::Observer),
            _ => Err(WrongIdentity::new("its role is neither node nor observer")),
        }
    }
}

/// Who somebody is. Written `tasuki://<cluster>/<role>/<name>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    cluster: String,
    role: PeerRole,
    name: String,
}

/// Somebody is not who may call, or be called, here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WrongIdentity(String);

impl WrongIdentity {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

impl Identity {
    /// Cluster and name are letters, digits, dots, hyphens and underscores: they stand in addresses.
    pub fn new(cluster: &str, role: PeerRole, name: &str) -> Result<Self, WrongIdentity> {
        for (part, written) in [("cluster", cluster), ("name", name)] {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            // A name is also a folder's: it neither hides nor leads elsewhere.
            let dotted = written.starts_with('.');
            if written.is_empty()
                || written.len() > PART_CHARS
                || dotted
                || !written.chars().all(plain)
            {
                let expected = "letters, digits, dots, hyphens and underscores, no dot in front";
                return Err(WrongIdentity(format!("{part} {written:?} should be {expected}")));
            }
        }
        Ok(Self { cluster: cluster.to_owned(), role, name: name.to_owned() })
    }

    /// Which cluster it is of.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// What it may ask.
    pub fn role(&self) -> PeerRole {
        self.role
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The one identity that a certificate is for. One with two would be whoever suits best.
    pub(crate) fn in_certificate(der: &CertificateDer<'_>) -> Result<Self, WrongIdentity> {
        let certificate = webpki::EndEntityCert::try_from(der)
            .map_err(|error| WrongIdentity(format!("its certificate cannot be read: {error}")))?;
        let mut ours = certificate.valid_uri_names().filter(|uri| uri.starts_with("tasuki://"));
        match (ours.next(), ours.next()) {
            (Some(uri), None) => uri.parse(),
            (None, _) => Err(WrongIdentity::new("its certificate has no tasuki:// name")),
            (Some(_), Some(_)) => {
                Err(WrongIdentity::new("its certificate has two tasuki:// names"))
            }
        }
    }

    /// Refuses those of another cluster.
    pub(crate) fn of_cluster(self, cluster: &str) -> Result<Self, WrongIdentity> {
        if self.cluster == cluster {
            return Ok(self);
        }
        Err(WrongIdentity(format!("{self} is of another cluster than {cluster}")))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tasuki://{}/{}/{}", self.cluster, self.role.as_str(), self.name)
    }
}

impl FromStr for Identity {
    type Err = WrongIdentity;

    fn from_str(written: &str) -> Result<Self, WrongIdentity> {
        let parts =
            written.strip_prefix("tasuki://").map(|rest| rest.split('/').collect::<Vec<_>>());
        match parts.as_deref() {
            Some([cluster, role, name]) => Self::new(cluster, role.parse()?, name),
            _ => Err(WrongIdentity::new("an identity is tasuki://<cluster>/<role>/<name>")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_reads_back() {
        for written in ["tasuki://prod/node/pod-7.web", "tasuki://a/observer/b_c"] {
            assert_eq!(written.parse::<Identity>().unwrap().to_string(), written);
        }
    }

    #[test]
    fn what_is_not_quite_one_is_none() {
        let wrong = [
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
        for written in wrong {
            assert!(written.parse::<Identity>().is_err(), "{written:?}");
        }
    }
}
