//! What happens here is told to whoever sleeps in this process at once, and to other processes on the same
//! database a moment later at most: one word for all that happened meanwhile.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tasuki_store::{Dialect, News, Store};
use tokio::sync::mpsc;

use crate::Wake;
use crate::notify::word::Words;

/// How long after one word the next is told at the earliest.
const PAUSE: Duration = Duration::from_millis(10);

const LEADER: u8 = 1;
const CLAIMS: u8 = 2;
const LEASES: u8 = 4;

/// Wakes here and abroad. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Announce {
    wake: Wake,
    abroad: Arc<Abroad>,
}

struct Abroad {
    store: Store,
    untold: Arc<AtomicU8>,
    ring: Mutex<Option<mpsc::Sender<()>>>,
}

impl Announce {
    pub(crate) fn new(store: &Store, wake: Wake) -> Self {
        let store = store.clone();
        let abroad = Abroad { store, untold: Arc::default(), ring: Mutex::default() };
        Self { wake, abroad: Arc::new(abroad) }
    }

    /// Whom it wakes here.
    pub(crate) fn wake(&self) -> &Wake {
        &self.wake
    }

    /// Where word is left for those whom something concerns.
    pub(crate) fn words(&self) -> &Words {
        self.wake.words()
    }

    /// Something is to be planned.
    pub(crate) fn leader(&self) {
        self.wake.leader();
        self.abroad(LEADER);
    }

    /// Something can be claimed.
    pub(crate) fn claims(&self) {
        self.wake.claims();
        self.abroad(CLAIMS);
    }

    /// Something about what is carried changed.
    pub(crate) fn leases(&self) {
        self.wake.leases();
        self.abroad(LEASES);
    }

    /// Somebody acted; which loop it concerns is not worth telling apart.
    pub(crate) fn all(&self) {
        self.wake.all();
        self.abroad(LEADER | CLAIMS | LEASES);
    }

    fn abroad(&self, whom: u8) {
        let abroad = &self.abroad;
        // Where the database carries no news, and nobody else does.
        if abroad.store.dialect() != Dialect::Postgres && self.wake.abroad().is_none() {
            return;
        }
        abroad.untold.fetch_or(whom, Ordering::Relaxed);
        // Without a runtime nobody can tell; they look a second later at most.
        if tokio::runtime::Handle::try_current().is_ok() {
            let mut ring = abroad.ring.lock().unwrap_or_else(PoisonError::into_inner);
            // The one who told may have ended with the runtime it was started on.
            let teller = match ring.take() {
                Some(ring) if !ring.is_closed() => ring,
                Some(_) | None => abroad.teller(self.wake.clone()),
            };
            // Full: the teller is on its way already.
            let _ = ring.insert(teller).try_send(());
        }
    }
}

impl Abroad {
    /// Starts who tells; it ends when nobody is left who might ring.
    fn teller(&self, wake: Wake) -> mpsc::Sender<()> {
        let (ring, mut rung) = mpsc::channel(1);
        let (store, untold) = (self.store.clone(), Arc::clone(&self.untold));
        tokio::spawn(async move {
            while rung.recv().await.is_some() {
                let whom = untold.swap(0, Ordering::Relaxed);
                let news = News {
                    from: wake.id(),
                    leader: whom & LEADER > 0,
                    claims: whom & CLAIMS > 0,
                    leases: whom & LEASES > 0,
                    lead: false,
                };
                let told = match (store.dialect(), wake.abroad()) {
                    (Dialect::Postgres, _) | (_, None) => {
                        store.tell(news).await.map_err(|error| error.to_string())
                    }
                    (_, Some(there)) => there.tell(news).await.map_err(|error| error.to_string()),
                };
                if let Err(error) = told {
                    tracing::debug!(%error, "others were not told; they will look by themselves");
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
        ring
    }
}
