//! A roll-up of sales per shop, every second. Each run adds up the sales since its watermark and updates the
//! watermark in the same transaction, so that no sale is counted twice, even if a run is retried.
//!
//! Run it with `cargo run -p tasuki --example roll_up`.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::SqlitePool;
use tasuki::{
    Client, Context, JobDeclaration, ProviderError, ScopeProvider, TaskError, TaskSuccess,
};
use tasuki_core::RunScope;
use tasuki_core::plan_scheduled_runs::MisfirePolicy;

const TABLES: &str = "
    create table if not exists sale (id integer primary key, shop text not null, cents integer not null);
    create table if not exists total (shop text primary key, cents integer not null, watermark integer not null)";

/// Lists the shops as scopes. A new shop is included from then on.
struct Shops(SqlitePool);

#[async_trait]
impl ScopeProvider for Shops {
    async fn scopes(&self) -> Result<Vec<RunScope>, ProviderError> {
        let shops: Vec<String> =
            sqlx::query_scalar("select distinct shop from sale").fetch_all(&self.0).await?;
        shops.iter().map(|shop| Ok(RunScope::new("shop", shop)?)).collect()
    }
}

async fn roll_up(pool: SqlitePool, context: Context) -> Result<TaskSuccess, TaskError> {
    let shop = context.run_scope().id();
    let mut transaction = pool.begin_with("begin immediate").await?;
    let (cents, watermark): (i64, i64) =
        sqlx::query_as("select cents, watermark from total where shop = ?")
            .bind(shop)
            .fetch_optional(&mut *transaction)
            .await?
            .unwrap_or_default();
    let (sold, sales, newest): (i64, i64, i64) = sqlx::query_as(
        "select coalesce(sum(cents), 0), count(*), coalesce(max(id), ?) from sale where shop = ? and id > ?",
    )
    .bind(watermark)
    .bind(shop)
    .bind(watermark)
    .fetch_one(&mut *transaction)
    .await?;
    sqlx::query("insert or replace into total values (?, ?, ?)")
        .bind(shop)
        .bind(cents + sold)
        .bind(newest)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    context.log(format!("{shop}: {sales} sales, {} cents in all", cents + sold));
    Ok(TaskSuccess::default().rows_affected(sales))
}

/// Stores sales of three shops, runs the roll-up, and returns the totals.
pub(crate) async fn run(database: &str) -> Result<String, Box<dyn std::error::Error>> {
    let client = Client::connect(database).await?;
    let pool = SqlitePool::connect(database).await?;
    sqlx::raw_sql(TABLES).execute(&pool).await?;
    let job = JobDeclaration::every("roll_up", "1s")?
        .fire_per_scope(Shops(pool.clone()))
        .misfire(MisfirePolicy::LatestOnly);
    let for_handler = pool.clone();
    let node = client
        .node_builder("roll_up")?
        .handler("roll_up", move |(): (), context| roll_up(for_handler.clone(), context))
        .job(job);
    let shops = ["berlin", "kyoto", "lima"];
    for (number, shop) in shops.iter().cycle().take(30).enumerate() {
        sqlx::query("insert into sale (shop, cents) values (?, ?)")
            .bind(shop)
            .bind(number as i64 * 10)
            .execute(&pool)
            .await?;
    }
    let node = node.start().await?;
    let summary = loop {
        let totals: Vec<(String, i64)> =
            sqlx::query_as("select shop, cents from total order by shop").fetch_all(&pool).await?;
        if totals.len() == shops.len() {
            break totals.iter().map(|(shop, cents)| format!("{shop}: {cents}\n")).collect();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    node.stop().await;
    pool.close().await;
    Ok(summary)
}

#[allow(dead_code, reason = "the tests call run")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    print!("{}", run("sqlite:roll_up.db").await?);
    Ok(())
}
