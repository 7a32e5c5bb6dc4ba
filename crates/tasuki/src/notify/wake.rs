//! Wake-ups: something happened that a loop would find by itself a little later.
//!
//! A wake-up carries nothing and may be lost or repeated: whoever is woken looks at the database.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tasuki_store::{Created, Error, News, Task};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::node::coordination::coordinate::Coordinator;
use crate::notify::word::Words;

/// Wakes the loops of the node in this process. Cheap to clone; harmless where no node is.
#[derive(Debug, Clone, Default)]
pub struct Wake {
    bells: Arc<Bells>,
}

struct Bells {
    /// Whose these are, among all processes.
    id: u64,
    leader: Notify,
    claims: Notify,
    leases: Notify,
    recovery: Notify,
    lead: Notify,
    /// Where a node of this process takes tasks in.
    door: Mutex<Option<mpsc::Sender<Arrival>>>,
    /// Where other processes hear, beside the database.
    abroad: Mutex<Option<Arc<dyn Coordinator>>>,
    /// What those concerned are still to be told.
    words: Words,
}

impl fmt::Debug for Bells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bells").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Tasks that are submitted in this process, and might be carried at once.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) tasks: Arc<[Task]>,
    /// `None`: not here, and nothing was made.
    pub(crate) answer: oneshot::Sender<Result<Option<Vec<Created>>, Error>>,
}

impl Default for Bells {
    fn default() -> Self {
        let bell = Notify::new;
        let (leader, claims, leases) = (bell(), bell(), bell());
        let (recovery, lead) = (bell(), bell());
        // Without randomness two might be taken for one, and then wait for a second.
        let id = getrandom::u64().unwrap_or_default();
        let (door, abroad, words) = (Mutex::default(), Mutex::default(), Words::default());
        Self { id, leader, claims, leases, recovery, lead, door, abroad, words }
    }
}

impl Wake {
    pub(crate) fn id(&self) -> u64 {
        self.bells.id
    }

    /// From now on what happens here is told there, too.
    pub(crate) fn tell_over(&self, coordinator: Arc<dyn Coordinator>) {
        *self.bells.abroad.lock().unwrap_or_else(PoisonError::into_inner) = Some(coordinator);
    }

    pub(crate) fn abroad(&self) -> Option<Arc<dyn Coordinator>> {
        self.bells.abroad.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where word is left for those whom something concerns.
    pub(crate) fn words(&self) -> &Words {
        &self.bells.words
    }

    /// A node stands here, to which tasks can be brought until it drops this.
    pub(crate) fn door(&self) -> mpsc::Receiver<Arrival> {
        let (door, arrivals) = mpsc::channel(1);
        *self.bells.door.lock().unwrap_or_else(PoisonError::into_inner) = Some(door);
        arrivals
    }

    /// Brings tasks to the node of this process. `None`: it does not take them, and nothing was made.
    pub(crate) async fn bring(&self, tasks: &Arc<[Task]>) -> Result<Option<Vec<Created>>, Error> {
        let door = self.bells.door.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(door) = door else { return Ok(None) };
        let (answer, told) = oneshot::channel();
        let tasks = Arc::clone(tasks);
        if door.send(Arrival { tasks, answer }).await.is_err() {
            return Ok(None);
        }
        // It was taken from the door, and may have been made: whoever submits must not believe otherwise.
        let ended = || Error::Broken("the node that took the task ended before it told".to_owned());
        told.await.map_err(|_| ended())?
    }

    /// Another process tells what happened there.
    pub(crate) fn heard(&self, news: News) {
        if news.from == self.id() {
            return;
        }
        for (told, bell) in [
            (news.leader, &self.bells.leader),
            (news.claims, &self.bells.claims),
            (news.leases, &self.bells.leases),
            (news.lead, &self.bells.lead),
        ] {
            if told {
                bell.notify_one();
            }
        }
    }

    /// Something is to be planned: a job changed, an event came, a run was asked for or ended.
    pub fn leader(&self) {
        self.bells.leader.notify_one();
    }

    /// Something can be claimed.
    pub fn claims(&self) {
        self.bells.claims.notify_one();
    }

    /// Something about what is carried changed: a cancel was asked.
    pub fn leases(&self) {
        self.bells.leases.notify_one();
    }

    /// Somebody acted; which loop it concerns is not worth telling apart.
    pub fn all(&self) {
        self.leader();
        self.claims();
        self.leases();
    }

    /// There is a new leader: what was lost before it need not wait.
    pub(crate) fn recovery(&self) {
        self.bells.recovery.notify_one();
    }

    pub(crate) async fn recovery_woken(&self) {
        self.bells.recovery.notified().await;
    }

    /// The lead is to be looked at now.
    pub(crate) fn lead(&self) {
        self.bells.lead.notify_one();
    }

    pub(crate) async fn lead_woken(&self) {
        self.bells.lead.notified().await;
    }

    pub(crate) async fn leader_woken(&self) {
        self.bells.leader.notified().await;
    }

    pub(crate) async fn claims_woken(&self) {
        self.bells.claims.notified().await;
    }

    pub(crate) async fn leases_woken(&self) {
        self.bells.leases.notified().await;
    }
}
