//! Redis over TLS.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tasuki::node::coordination::coordinator_trait::Coordinator as _;
use tasuki_cluster::redis::{RedisConfig, RedisCoordinator};
use tasuki_core::Epoch;
use tasuki_store::Notification;

use super::fixtures::{LONG, RetryingCoordinator, new_worker};
use super::notifications::subscribe;
use super::servers::{PASSWORD, RedisServer, free_port, write_file};

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // With the same name as the certificates that it signs, the authority would look like a self-signed one of them.
        parameters.distinguished_name.push(DnType::CommonName, "an authority");
        let key = KeyPair::generate().unwrap();
        let pem = parameters.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(parameters, key) }
    }

    /// Issues a certificate for a name. Returns certificate and key as PEM.
    fn issue_certificate(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

/// A connection fails unless both sides present a certificate that the other side trusts.
#[tokio::test]
async fn both_sides_must_present_a_trusted_certificate() {
    let authority = Authority::new();
    let (chain, key) = authority.issue_certificate("127.0.0.1");
    let server = RedisServer::standalone();
    let folder = server.folder.clone();
    let port = free_port().to_string();
    for (setting, value) in [
        ("tls-ca-cert-file", write_file(&folder, "ca.pem", &authority.pem)),
        ("tls-key-file", write_file(&folder, "key.pem", &key)),
    ] {
        server.run_command::<()>(&["CONFIG", "SET", setting, &value]);
    }
    let chain_file = write_file(&folder, "chain.pem", &chain);
    server.run_command::<()>(&["CONFIG", "SET", "tls-cert-file", &chain_file, "tls-port", &port]);

    let config: RedisConfig = format!("rediss://:{PASSWORD}@127.0.0.1:{port}").parse().unwrap();
    let (own_chain, own_key) = authority.issue_certificate("a worker");
    let with_certificate =
        || config.clone().with_client_certificate(own_chain.as_str(), own_key.as_str());
    let coordinator = RetryingCoordinator(
        RedisCoordinator::new(with_certificate().with_ca_certificates(authority.pem.as_str()))
            .unwrap(),
    );
    let worker = new_worker();
    coordinator.publish_leader(worker, Epoch(2), LONG).await.unwrap();
    assert_eq!(coordinator.acquire_election_lock(worker, LONG).await.unwrap(), Some(Epoch(2)));
    let mut subscription = subscribe(&coordinator).await;
    let notification = Notification { sender: 2, wake_renew_loop: true, ..Notification::default() };
    coordinator.notify(notification).await.unwrap();
    assert_eq!(subscription.next_notification().await.unwrap(), notification);

    let other_name = format!("rediss://:{PASSWORD}@localhost:{port}").parse::<RedisConfig>();
    let other_name =
        other_name.unwrap().with_client_certificate(own_chain.as_str(), own_key.as_str());
    for (case, config) in [
        ("the client does not trust the server's authority", with_certificate()),
        (
            "the client trusts another authority",
            with_certificate().with_ca_certificates(Authority::new().pem),
        ),
        (
            "the client has no certificate",
            config.clone().with_ca_certificates(authority.pem.as_str()),
        ),
        (
            "the server's certificate has another host name",
            other_name.with_ca_certificates(authority.pem.as_str()),
        ),
    ] {
        let coordinator = RedisCoordinator::new(config).unwrap();
        assert!(coordinator.acquire_election_lock(worker, LONG).await.is_err(), "{case}");
    }
    // A client without TLS cannot use the TLS port.
    let plain = format!("redis://:{PASSWORD}@127.0.0.1:{port}").parse::<RedisConfig>().unwrap();
    assert!(
        RedisCoordinator::new(plain).unwrap().acquire_election_lock(worker, LONG).await.is_err()
    );
}

/// Invalid certificates are refused before a connection is opened.
#[test]
fn invalid_certificates_are_refused() {
    let config: RedisConfig = "rediss://127.0.0.1".parse().unwrap();
    assert!(RedisCoordinator::new(config.clone().with_client_certificate("chain", "key")).is_err());
    assert!(RedisCoordinator::new(config).is_ok());
}
