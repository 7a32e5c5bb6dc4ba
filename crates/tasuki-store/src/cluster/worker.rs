//! Workers: one row for each incarnation.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};
use tasuki_core::{Epoch, NodeName, WorkerId};

use crate::audit::{self, Act, Actor};
use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{Row, Tx, params};
use crate::run::timestamp;
use crate::{Writer, Error, Store, uuid};

static REGISTER: Sql = sql!("worker/register");
static HEARTBEAT: Sql = sql!("worker/heartbeat", "", "", ".mysql");
static NOW: Sql = sql!("worker/now", ".mysql", ".mysql", ".mysql");
static SHOW: Sql = sql!("worker/show");
static LOCK: Sql = sql!("worker/lock");
static LIST: Sql = sql!("worker/list");
static RESIZE: Sql = sql!("worker/resize");
static DRAIN: Sql = sql!("worker/drain");
static DETACH: Sql = sql!("worker/detach");
static DEAD: Sql = sql!("worker/dead");
static GONE: Sql = sql!("worker/gone");

/// A worker that begins.
#[derive(Debug, Clone)]
pub struct NewWorker {
    /// Its incarnation: never used before.
    pub id: WorkerId,
    /// Where it is.
    pub node: NodeName,
    /// Its process.
    pub pid: Option<u32>,
    /// Where it can be called.
    pub address: Option<String>,
    /// What it is good for, as a JSON list.
    pub labels: Option<String>,
    /// How many commands at once.
    pub slots: u32,
    /// How many functions at once.
    pub function_slots: u32,
}

/// A worker as its row has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// Which incarnation.
    pub id: WorkerId,
    /// Where.
    pub node: NodeName,
    /// Where it can be called.
    pub address: Option<String>,
    /// How many commands at once.
    pub slots: u32,
    /// How many functions at once.
    pub function_slots: u32,
    /// What it is good for.
    pub labels: BTreeSet<String>,
    /// When it was last known alive.
    pub heartbeat_at: Timestamp,
    /// Since when it takes no new work.
    pub draining_at: Option<Timestamp>,
    /// Since when it is cut off.
    pub detached_at: Option<Timestamp>,
    /// When its successor reported it dead.
    pub dead_at: Option<Timestamp>,
    /// When it left.
    pub gone_at: Option<Timestamp>,
}

/// A worker, and whether there is anything else for it to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerNow {
    /// Its row.
    pub worker: Worker,
    /// What the database's clock said just then.
    pub clock: Timestamp,
    /// Which settings are in force.
    pub settings_version: i64,
    /// Whether it has a lease.
    pub carries: bool,
    /// The newest term.
    pub epoch: Epoch,
}

impl Worker {
    /// Whether it takes new work.
    pub fn is_active(&self) -> bool {
        self.draining_at.is_none() && self.is_attached()
    }

    /// Whether it may go on with what it has.
    pub fn is_attached(&self) -> bool {
        self.detached_at.is_none() && self.dead_at.is_none() && self.gone_at.is_none()
    }

    /// As the audit tells it.
    fn told(&self) -> Value {
        json!({
            "node": self.node.as_str(),
            "draining": self.draining_at.is_some(),
            "detached": self.detached_at.is_some(),
        })
    }

    fn from_row(row: &Row) -> Result<Self, Error> {
        let instant = |name| row.opt_int(name)?.map(timestamp).transpose();
        Ok(Self {
            id: WorkerId::from_bytes(row.uuid("id")?.into_bytes()),
            node: row.text("node")?.parse()?,
            address: row.opt_text("address")?,
            slots: row.int("slots")? as u32,
            function_slots: row.int("function_slots")? as u32,
            labels: crate::job::list_in(row, "labels")?,
            heartbeat_at: timestamp(row.int("heartbeat_at")?)?,
            draining_at: instant("draining_at")?,
            detached_at: instant("detached_at")?,
            dead_at: instant("dead_at")?,
            gone_at: instant("gone_at")?,
        })
    }
}

impl WorkerNow {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            worker: Worker::from_row(row)?,
            clock: timestamp(row.int("clock")?)?,
            settings_version: row.int("settings_version")?,
            carries: row.int("leases")? > 0,
            epoch: Epoch(row.int("epoch")?),
        })
    }
}

impl Store {
    /// A new incarnation begins.
    pub async fn register_worker(&self, worker: &NewWorker) -> Result<(), Error> {
        let row = params! {
            id: uuid(worker.id.as_bytes()),
            node: worker.node.as_str(),
            pid: worker.pid.map(i64::from),
            address: worker.address.clone(),
            labels: worker.labels.clone(),
            slots: worker.slots,
            function_slots: worker.function_slots,
            version: env!("CARGO_PKG_VERSION"),
        };
        self.change_worker(&REGISTER, row).await.map(drop)
    }

    /// It is alive, and learns what it has to know again and again. `None`: it was declared dead or gone and must
    /// begin anew under another id.
    pub async fn heartbeat(&self, worker: WorkerId) -> Result<Option<WorkerNow>, Error> {
        let me = params! { id: uuid(worker.as_bytes()) };
        let rows = match self.db.dialect() {
            Dialect::Sqlite | Dialect::Postgres => self.db.write(&HEARTBEAT, me).await?,
            Dialect::MySql => match self.change_worker(&HEARTBEAT, me.clone()).await? {
                true => self.db.rows(&NOW, me).await?,
                false => Vec::new(),
            },
        };
        rows.first().map(WorkerNow::from_row).transpose()
    }

    /// From now on it does so many commands and functions at once. `false`: it is gone.
    pub async fn resize_worker(
        &self,
        worker: WorkerId,
        slots: u32,
        function_slots: u32,
    ) -> Result<bool, Error> {
        let room = params! {
            id: uuid(worker.as_bytes()),
            slots: slots,
            function_slots: function_slots,
        };
        self.change_worker(&RESIZE, room).await
    }

    /// No new work for it. `false`: it drains already, or is gone. A worker that drains by itself acts
    /// under its own id.
    pub async fn drain_worker<'a>(
        &self,
        by: impl Into<Actor<'a>>,
        worker: WorkerId,
    ) -> Result<bool, Error> {
        self.put_aside("drain", &DRAIN, Writer::Api, by.into(), worker, None).await
    }

    /// Cut off: no new work, and what is assigned to it goes elsewhere. `false`: it is cut off already,
    /// or gone. A leader that detaches acts in its term and under its own id.
    pub async fn detach_worker<'a>(
        &self,
        author: Writer,
        by: impl Into<Actor<'a>>,
        worker: WorkerId,
        reason: &str,
    ) -> Result<bool, Error> {
        self.put_aside("detach", &DETACH, author, by.into(), worker, Some(reason)).await
    }

    async fn put_aside(
        &self,
        action: &'static str,
        sql: &Sql,
        author: Writer,
        by: Actor<'_>,
        worker: WorkerId,
        reason: Option<&str>,
    ) -> Result<bool, Error> {
        let mut tx = self.begin_as(author).await?;
        let change = params! {
            id: uuid(worker.as_bytes()),
            reason: reason.map(str::to_owned),
        };
        let before = lock(&mut tx, worker).await?;
        let hit = tx.execute(sql, change).await? == 1;
        let (Some(before), true) = (before, hit) else {
            tx.rollback().await?;
            return Ok(false);
        };
        let after =
            look(&mut tx, worker).await?.ok_or_else(|| Error::broken("a worker vanished"))?;
        let mut told = after.told();
        told["reason"] = reason.into();
        if let Writer::Leader(epoch) = author {
            told["epoch"] = epoch.0.into();
        }
        let object = format!("worker {worker}");
        let act = Act { action, object, before: Some(before.told()), after: Some(told) };
        audit::append(&mut tx, by, act).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Reported dead by a newer incarnation on the same node, which holds the data directory's lock,
    /// has swept its processes and reported its results.
    pub async fn report_dead(&self, worker: WorkerId, node: &NodeName) -> Result<bool, Error> {
        self.change_worker(&DEAD, params! { id: uuid(worker.as_bytes()), node: node.as_str() })
            .await
    }

    /// It left in order.
    pub async fn worker_gone(&self, worker: WorkerId) -> Result<bool, Error> {
        self.change_worker(&GONE, params! { id: uuid(worker.as_bytes()) }).await
    }

    /// One worker.
    pub async fn worker(&self, worker: WorkerId) -> Result<Option<Worker>, Error> {
        let rows = self.db.rows(&SHOW, params! { id: uuid(worker.as_bytes()) }).await?;
        rows.first().map(Worker::from_row).transpose()
    }

    /// Those that have not left.
    pub async fn workers(&self) -> Result<Vec<Worker>, Error> {
        Ok(self.workers_now().await?.0)
    }

    /// The same, and what the database's clock said just then.
    pub async fn workers_now(&self) -> Result<(Vec<Worker>, Timestamp), Error> {
        let rows = self.db.rows(&LIST, params! {}).await?;
        let clock = match rows.first() {
            Some(row) => timestamp(row.int("clock")?)?,
            None => self.clock().await?,
        };
        Ok((rows.iter().map(Worker::from_row).collect::<Result<_, _>>()?, clock))
    }

    async fn change_worker(&self, sql: &Sql, params: crate::db::Params<'_>) -> Result<bool, Error> {
        Ok(self.db.change(sql, params).await? == 1)
    }
}

/// A worker, held still while work is given to it or started by it.
pub(crate) async fn lock(tx: &mut Tx<'_>, worker: WorkerId) -> Result<Option<Worker>, Error> {
    let rows = tx.rows(&LOCK, params! { id: uuid(worker.as_bytes()) }).await?;
    rows.first().map(Worker::from_row).transpose()
}

/// A worker as this transaction sees it.
pub(crate) async fn look(tx: &mut Tx<'_>, worker: WorkerId) -> Result<Option<Worker>, Error> {
    let rows = tx.rows(&SHOW, params! { id: uuid(worker.as_bytes()) }).await?;
    rows.first().map(Worker::from_row).transpose()
}
