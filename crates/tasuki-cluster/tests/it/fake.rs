//! A node that is called, the certificates it is called with, and folders that go away.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use tasuki::node::coordination::coordinate::Role;
use tasuki::node::coordination::peers::{
    Answer, Called, CancelOrder, Peer, Peers as _, Question, Silent, StartOrder, Status,
};
use tasuki::node::world::{Clock, RealClock};
use tasuki_cluster::rpc::{Limits, RpcPeers, RpcServer};
use tasuki_cluster::tls::dev::{Authority, Valid};
use tasuki_cluster::tls::{Tls, TlsFiles};
use tasuki_cluster::{Identity, PeerRole, Security};
use tasuki_core::{Epoch, RunId, WorkerId};
use tokio::sync::{Notify, Semaphore};

pub(crate) const CLUSTER: &str = "test";
/// Files are looked at this often here.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Somebody who remembers what was said.
pub(crate) struct Fake {
    pub(crate) id: WorkerId,
    pub(crate) newest: Mutex<Epoch>,
    pub(crate) heard: Mutex<Vec<Heard>>,
    /// Orders wait here while it is closed.
    pub(crate) gate: Semaphore,
    pub(crate) waiting: Notify,
    pub(crate) answer: Mutex<Answer>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    Start(StartOrder),
    Cancel(CancelOrder),
    Drain(Epoch),
    Confirm(Question),
    Reload(i64),
}

impl Fake {
    pub(crate) fn new(id: u128) -> Arc<Self> {
        Arc::new(Self {
            id: WorkerId::from_random(id),
            newest: Mutex::new(Epoch(1)),
            heard: Mutex::default(),
            gate: Semaphore::new(1_000_000),
            waiting: Notify::new(),
            answer: Mutex::new(Answer::Accepted),
        })
    }

    pub(crate) fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap().clone()
    }

    /// From now on nothing is answered.
    pub(crate) fn close_gate(&self) {
        self.gate.forget_permits(usize::MAX >> 8);
    }

    pub(crate) fn open_gate(&self) {
        self.gate.add_permits(1_000_000);
    }

    async fn hear(&self, epoch: Epoch, heard: Heard) -> Answer {
        self.waiting.notify_one();
        let _turn = self.gate.acquire().await.unwrap();
        let mut newest = self.newest.lock().unwrap();
        if epoch < *newest {
            return Answer::OldEpoch(*newest);
        }
        *newest = epoch;
        self.heard.lock().unwrap().push(heard);
        self.answer.lock().unwrap().clone()
    }
}

#[async_trait]
impl Called for Fake {
    fn worker(&self) -> WorkerId {
        self.id
    }

    fn status(&self) -> Status {
        Status {
            worker: self.id,
            node: "ノード1".parse().unwrap(),
            role: Role::Subleader,
            epoch: *self.newest.lock().unwrap(),
            load: 3,
            runs: vec![RunId(7), RunId(8)],
            detached: true,
            draining: false,
        }
    }

    async fn start(&self, order: StartOrder) -> Answer {
        self.hear(order.epoch, Heard::Start(order)).await
    }

    async fn cancel(&self, order: CancelOrder) -> Answer {
        self.hear(order.epoch, Heard::Cancel(order)).await
    }

    async fn drain(&self, epoch: Epoch) -> Answer {
        self.hear(epoch, Heard::Drain(epoch)).await
    }

    async fn may_ask(&self, _: &str, _: WorkerId) -> Result<bool, Silent> {
        Ok(true)
    }

    async fn confirm(&self, question: Question) -> Result<Vec<RunId>, Silent> {
        self.heard.lock().unwrap().push(Heard::Confirm(question.clone()));
        match question.runs.first() {
            Some((run, _)) => Ok(vec![*run]),
            None => Err(Silent("this worker neither leads nor stands ready to".to_owned())),
        }
    }

    async fn reload(&self, version: i64) -> Answer {
        self.hear(Epoch(i64::MAX), Heard::Reload(version)).await
    }
}

/// The machine's clock, moved.
#[derive(Default)]
pub(crate) struct Moved {
    pub(crate) seconds: AtomicI64,
}

impl Moved {
    pub(crate) fn by(seconds: i64) -> Arc<Self> {
        Arc::new(Self { seconds: AtomicI64::new(seconds) })
    }
}

impl Clock for Moved {
    fn boottime(&self) -> u64 {
        let moved = self.seconds.load(Ordering::Relaxed).max(0) as u64;
        RealClock.boottime() + moved * 1_000_000
    }

    fn wall(&self) -> Timestamp {
        RealClock.wall() + SignedDuration::from_secs(self.seconds.load(Ordering::Relaxed))
    }
}

/// A folder that goes away with its test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name =
            format!("tasuki-rpc-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Replaces a file as a whole.
    pub(crate) fn write(&self, name: &str, content: &str) {
        let beside = self.0.join(format!("{name}.new"));
        fs::write(&beside, content).unwrap();
        fs::rename(beside, self.0.join(name)).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn authority() -> Authority {
    Authority::new(days(30)).unwrap()
}

/// Good since a while, and for so many days.
pub(crate) fn days(days: i64) -> Valid {
    between(-30, days)
}

/// Good from one day to another, counted from now.
pub(crate) fn between(from: i64, until: i64) -> Valid {
    let (now, at) = (Timestamp::now(), |days: i64| SignedDuration::from_hours(24 * days));
    Valid { from: now + at(from), until: now + at(until) }
}

pub(crate) fn node(name: &str) -> Identity {
    Identity::new(CLUSTER, PeerRole::Node, name).unwrap()
}

pub(crate) fn observer() -> Identity {
    Identity::new(CLUSTER, PeerRole::Observer, "probe").unwrap()
}

/// A folder with a certificate for somebody, its key, and the authority.
pub(crate) fn certified(authority: &Authority, identity: &Identity) -> Folder {
    let folder = Folder::new();
    let (certificate, key) = authority.certify(identity, days(30)).unwrap();
    folder.write("tls.crt", &certificate);
    folder.write("tls.key", &key);
    folder.write("ca.crt", authority.pem());
    folder
}

pub(crate) fn open(folder: &Folder) -> Arc<Tls> {
    open_as(folder, CLUSTER, Arc::new(RealClock)).unwrap()
}

pub(crate) fn open_as(
    folder: &Folder,
    cluster: &str,
    clock: Arc<dyn Clock>,
) -> Result<Arc<Tls>, tasuki_cluster::security::Error> {
    Tls::open(TlsFiles::in_folder(folder.path()), cluster, clock, LOOK_EVERY)
}

/// Two nodes of one authority: one that is called, and one that calls.
pub(crate) struct Two {
    pub(crate) fake: Arc<Fake>,
    pub(crate) server: RpcServer,
    pub(crate) authority: Authority,
    pub(crate) peers: RpcPeers,
    pub(crate) peer: Peer,
    _folders: [Folder; 2],
}

impl Two {
    pub(crate) async fn start() -> Self {
        Self::start_with(Limits::default()).await
    }

    pub(crate) async fn start_with(limits: Limits) -> Self {
        let authority = authority();
        let folders = ["callee", "caller"].map(|name| certified(&authority, &node(name)));
        let [callee, caller] = [&folders[0], &folders[1]].map(|one| Security::Mtls(open(one)));
        let fake = Fake::new(1);
        let server = serve(&fake, callee, limits).await;
        let peer = peer(&fake, &server);
        let peers = RpcPeers::new(caller, Arc::new(RealClock));
        Self { fake, server, authority, peers, peer, _folders: folders }
    }

    /// Somebody else who calls.
    pub(crate) fn caller(&self, folder: &Folder) -> RpcPeers {
        RpcPeers::new(Security::Mtls(open(folder)), Arc::new(RealClock))
    }
}

pub(crate) async fn serve(fake: &Arc<Fake>, security: Security, limits: Limits) -> RpcServer {
    let anywhere = "127.0.0.1:0".parse().unwrap();
    RpcServer::start(anywhere, fake.clone(), security, limits).await.unwrap()
}

pub(crate) fn peer(fake: &Fake, server: &RpcServer) -> Peer {
    Peer { worker: fake.id, address: Some(server.address().to_string()) }
}

/// Waits until something is so; far longer than it takes.
pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30), "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Who answers a ping. A busy machine may miss the deadline of one.
pub(crate) async fn pinged(peers: &RpcPeers, peer: &Peer) -> WorkerId {
    let began = Instant::now();
    loop {
        match peers.ping(peer).await {
            Ok(worker) => return worker,
            Err(silent) => assert!(began.elapsed() < Duration::from_secs(20), "{silent}"),
        }
    }
}

pub(crate) async fn is_there(peers: &RpcPeers, peer: &Peer) -> bool {
    pinged(peers, peer).await == peer.worker
}
