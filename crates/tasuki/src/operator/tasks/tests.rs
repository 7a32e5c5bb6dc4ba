//! What is known of jobs is never old, and those who submit do not wait for it.

use tasuki_core::Role;
use tasuki_core::job_spec::{What, Work};
use tasuki_store::{Fault, Line, Pause};
use tokio::sync::Semaphore;

use super::*;
use crate::Wake;
use crate::operator::JobDraft;

const JOB: &str = "tea";
/// How long something is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

fn somebody() -> Actor {
    Actor { name: "ann".to_owned(), address: None, role: Role::Admin }
}

/// With one job.
async fn operator() -> Operator {
    let store = Store::open("sqlite::memory:", 1).await.unwrap();
    store.migrate().await.unwrap();
    let operator = Operator::new(store, Wake::default());
    let draft = JobDraft::new(Work::new(What::Function(JOB.to_owned())));
    operator.create_job(&somebody(), JOB, &draft).await.unwrap();
    operator
}

fn task() -> TaskDraft {
    TaskDraft { job: JOB.to_owned(), ..TaskDraft::default() }
}

impl Operator {
    fn knows(&self) -> Option<Arc<Known>> {
        self.submits.known().jobs.get(JOB).cloned()
    }
}

#[tokio::test]
async fn who_submits_all_the_time_does_not_wait_for_definitions() {
    let operator = operator().await;
    operator.enqueue(&task()).await.unwrap();
    let ahead = async {
        let mut before = operator.knows().unwrap();
        loop {
            operator.enqueue(&task()).await.unwrap();
            let now = operator.knows().unwrap();
            // Where this was kept waiting for so long that a submit had to read it, it is tried again.
            if !Arc::ptr_eq(&now, &before) && now.read - before.read < FRESH {
                return now.read - before.read;
            }
            before = now;
        }
    };
    let age = tokio::time::timeout(PATIENCE, ahead).await.expect("read ahead of its time");
    assert!(age >= AHEAD, "read again after {age:?}");
}

/// It is switched off by people who use another program.
async fn switched_off_elsewhere(operator: &Operator) {
    let other = Operator::new(operator.store.clone(), Wake::default());
    let job = other.stored_job(JOB).await.unwrap();
    other.disable_job(&somebody(), job.seen()).await.unwrap();
}

async fn is_refused(operator: &Operator) -> bool {
    match operator.enqueue(&task()).await {
        Ok(_) => false,
        Err(error) => {
            assert!(error.to_string().contains("is disabled and takes no tasks"), "{error}");
            true
        }
    }
}

#[tokio::test]
async fn what_others_change_counts_a_moment_later() {
    let operator = operator().await;
    operator.enqueue(&task()).await.unwrap();
    switched_off_elsewhere(&operator).await;
    let refused = async { while !is_refused(&operator).await {} };
    tokio::time::timeout(PATIENCE, refused).await.expect("it is heard of");
}

#[tokio::test]
async fn what_is_old_is_not_gone_by() {
    let operator = operator().await;
    operator.enqueue(&task()).await.unwrap();
    switched_off_elsewhere(&operator).await;
    let known = operator.knows().unwrap();
    while known.read.elapsed() < FRESH {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(is_refused(&operator).await);
}

/// Says when somebody waits for an answer, and lets it come when told to.
struct Held {
    asked: Semaphore,
    answers: Semaphore,
}

impl Line for Held {
    fn send(&self) -> Pause<'_, Fault> {
        Box::pin(std::future::ready(Fault::None))
    }

    fn answer(&self) -> Pause<'_, ()> {
        Box::pin(async {
            self.asked.add_permits(1);
            self.answers.acquire().await.unwrap().forget();
        })
    }
}

#[tokio::test]
async fn what_was_read_before_a_change_is_not_known_after_it() {
    let operator = operator().await;
    let held = Arc::new(Held { asked: Semaphore::new(0), answers: Semaphore::new(0) });
    let line = Arc::clone(&held) as Arc<dyn Line>;
    let slow = Operator { store: operator.store.with_line(line), ..operator.clone() };
    let reading = tokio::spawn(async move { slow.read_job(JOB).await.map(drop) });
    held.asked.acquire().await.unwrap().forget();
    let job = operator.stored_job(JOB).await.unwrap();
    operator.disable_job(&somebody(), job.seen()).await.unwrap();
    held.answers.add_permits(1);
    reading.await.unwrap().unwrap();
    assert!(operator.knows().is_none(), "it is on no more");
    assert!(operator.enqueue(&task()).await.is_err());
}
