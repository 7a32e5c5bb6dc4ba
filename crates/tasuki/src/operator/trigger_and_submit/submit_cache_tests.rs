//! Tests of the job cache: it is never outdated for long, and constant submitters never wait for reads.

use tasuki_core::AccessRole;
use tasuki_core::work_spec::{WorkAction, WorkSpec};
use tasuki_store::{BoxFuture, Fault, FaultInjector};
use tokio::sync::Semaphore;

use super::*;
use crate::Wakeups;
use crate::operator::JobDraft;

const JOB: &str = "tea";
/// Timeout of the tests.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn admin() -> Actor {
    Actor { name: "ann".to_owned(), address: None, role: AccessRole::Admin }
}

/// An operator on a new database with one job.
async fn operator() -> Operator {
    let store = Store::open("sqlite::memory:", 1).await.unwrap();
    store.migrate().await.unwrap();
    let operator = Operator::new(store, Wakeups::default());
    let draft = JobDraft::new(WorkSpec::new(WorkAction::Function(JOB.to_owned())));
    operator.create_job(&admin(), JOB, &draft).await.unwrap();
    operator
}

fn task() -> TaskDraft {
    TaskDraft { job: JOB.to_owned(), ..TaskDraft::default() }
}

impl Operator {
    fn cached(&self) -> Option<Arc<CachedJob>> {
        self.submit_cache.lock_jobs().jobs.get(JOB).cloned()
    }
}

#[tokio::test]
async fn a_constant_submitter_never_waits_for_a_read_of_the_job() {
    let operator = operator().await;
    operator.submit(&task()).await.unwrap();
    let ahead = async {
        let mut before = operator.cached().unwrap();
        loop {
            operator.submit(&task()).await.unwrap();
            let current = operator.cached().unwrap();
            // If this test was delayed so long that a submit had to read the job itself, check the next refresh.
            if !Arc::ptr_eq(&current, &before) && current.read_at - before.read_at < CACHE_TTL {
                return current.read_at - before.read_at;
            }
            before = current;
        }
    };
    let age = tokio::time::timeout(TEST_TIMEOUT, ahead).await.expect("the job is refreshed early");
    assert!(age >= REFRESH_AFTER, "refreshed after {age:?}");
}

/// Disables the job through another operator, as another process would.
async fn disable_job_elsewhere(operator: &Operator) {
    let other = Operator::new(operator.store.clone(), Wakeups::default());
    let job = other.get_stored_job(JOB).await.unwrap();
    other.disable_job(&admin(), job.expected_version()).await.unwrap();
}

async fn submit_is_rejected(operator: &Operator) -> bool {
    match operator.submit(&task()).await {
        Ok(_) => false,
        Err(error) => {
            assert!(error.to_string().contains("is disabled and accepts no tasks"), "{error}");
            true
        }
    }
}

#[tokio::test]
async fn a_change_by_another_process_applies_after_a_moment() {
    let operator = operator().await;
    operator.submit(&task()).await.unwrap();
    disable_job_elsewhere(&operator).await;
    let rejected = async { while !submit_is_rejected(&operator).await {} };
    tokio::time::timeout(TEST_TIMEOUT, rejected).await.expect("the change is noticed");
}

#[tokio::test]
async fn an_expired_cache_entry_is_not_used() {
    let operator = operator().await;
    operator.submit(&task()).await.unwrap();
    disable_job_elsewhere(&operator).await;
    let known = operator.cached().unwrap();
    while known.read_at.elapsed() < CACHE_TTL {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(submit_is_rejected(&operator).await);
}

/// Delays every database response until the test permits it.
struct PausedDatabase {
    requests: Semaphore,
    permits: Semaphore,
}

impl FaultInjector for PausedDatabase {
    fn on_request(&self) -> BoxFuture<'_, Fault> {
        Box::pin(std::future::ready(Fault::None))
    }

    fn on_response(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.requests.add_permits(1);
            self.permits.acquire().await.unwrap().forget();
        })
    }
}

#[tokio::test]
async fn a_job_read_before_a_change_is_not_cached_after_it() {
    let operator = operator().await;
    let paused =
        Arc::new(PausedDatabase { requests: Semaphore::new(0), permits: Semaphore::new(0) });
    let line = Arc::clone(&paused) as Arc<dyn FaultInjector>;
    let slow = Operator { store: operator.store.with_fault_injector(line), ..operator.clone() };
    let reading = tokio::spawn(async move { slow.read_job(JOB).await.map(drop) });
    paused.requests.acquire().await.unwrap().forget();
    let job = operator.get_stored_job(JOB).await.unwrap();
    operator.disable_job(&admin(), job.expected_version()).await.unwrap();
    paused.permits.add_permits(1);
    reading.await.unwrap().unwrap();
    assert!(operator.cached().is_none(), "the outdated job is not cached");
    assert!(operator.submit(&task()).await.is_err());
}
