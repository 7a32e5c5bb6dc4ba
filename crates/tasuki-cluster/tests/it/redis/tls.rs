//! Redis over TLS.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tasuki::node::coordination::coordinate::Coordinator as _;
use tasuki_cluster::redis::{RedisConfig, RedisCoordinator};
use tasuki_core::Epoch;
use tasuki_store::News;

use super::news::listen;
use super::place::{LONG, Patient, new_worker};
use super::servers::{PASSWORD, Server, free_port, write};

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Who is named as those it vouches for would be taken for one who vouches for itself.
        parameters.distinguished_name.push(DnType::CommonName, "an authority");
        let key = KeyPair::generate().unwrap();
        let pem = parameters.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(parameters, key) }
    }

    /// A certificate for this name, and its key.
    fn certify(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

/// Who is not who the certificate says, or shows none, is not talked to.
#[tokio::test]
async fn both_sides_show_who_they_are() {
    let authority = Authority::new();
    let (chain, key) = authority.certify("127.0.0.1");
    let server = Server::standalone();
    let folder = server.folder.clone();
    let port = free_port().to_string();
    for (setting, value) in [
        ("tls-ca-cert-file", write(&folder, "ca.pem", &authority.pem)),
        ("tls-key-file", write(&folder, "key.pem", &key)),
    ] {
        server.ask::<()>(&["CONFIG", "SET", setting, &value]);
    }
    let chain_file = write(&folder, "chain.pem", &chain);
    server.ask::<()>(&["CONFIG", "SET", "tls-cert-file", &chain_file, "tls-port", &port]);

    let config: RedisConfig = format!("rediss://:{PASSWORD}@127.0.0.1:{port}").parse().unwrap();
    let (own_chain, own_key) = authority.certify("a worker");
    let known = || config.clone().identified_by(own_chain.as_str(), own_key.as_str());
    let place = Patient(RedisCoordinator::new(known().trusting(authority.pem.as_str())).unwrap());
    let worker = new_worker();
    place.leads(worker, Epoch(2), LONG).await.unwrap();
    assert_eq!(place.stand(worker, LONG).await.unwrap(), Some(Epoch(2)));
    let mut ear = listen(&place).await;
    let news = News { from: 2, leases: true, ..News::default() };
    place.tell(news).await.unwrap();
    assert_eq!(ear.heard().await.unwrap(), news);

    let name_differs = format!("rediss://:{PASSWORD}@localhost:{port}").parse::<RedisConfig>();
    let name_differs = name_differs.unwrap().identified_by(own_chain.as_str(), own_key.as_str());
    for (why, config) in [
        ("nobody we trust vouches for it", known()),
        ("another vouches for it", known().trusting(Authority::new().pem)),
        ("it does not know us", config.clone().trusting(authority.pem.as_str())),
        ("it has another name", name_differs.trusting(authority.pem.as_str())),
    ] {
        let place = RedisCoordinator::new(config).unwrap();
        assert!(place.stand(worker, LONG).await.is_err(), "{why}");
    }
    // Without TLS there is nobody who understands.
    let plain = format!("redis://:{PASSWORD}@127.0.0.1:{port}").parse::<RedisConfig>().unwrap();
    assert!(RedisCoordinator::new(plain).unwrap().stand(worker, LONG).await.is_err());
}

/// What is no certificate is refused before anything starts.
#[test]
fn what_is_no_certificate_is_refused() {
    let config: RedisConfig = "rediss://127.0.0.1".parse().unwrap();
    assert!(RedisCoordinator::new(config.clone().identified_by("chain", "key")).is_err());
    assert!(RedisCoordinator::new(config).is_ok());
}
