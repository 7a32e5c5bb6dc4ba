//! A web service that stores an order and submits the task for its mail in one transaction: both exist, or neither.
//!
//! Run it with `cargo run -p tasuki --example shop`, then `curl -d tea http://127.0.0.1:3000/orders`. An order of
//! `nothing` is rejected after its mail task was submitted; the rollback removes both.

use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use tasuki::{Client, Context, TaskError};
use tasuki_core::RunId;
use tokio::net::TcpListener;

#[derive(Serialize, Deserialize)]
struct Mail {
    order: i64,
    text: String,
}

async fn send_mail(mail: Mail, context: Context) -> Result<(), TaskError> {
    // A real mail service would receive this key, so that a retry does not send a second mail.
    let key = context.idempotency_key();
    context.log(format!("mail for order {}: {} ({key})", mail.order, mail.text));
    Ok(())
}

#[derive(Clone)]
struct Shop {
    client: Client,
    pool: SqlitePool,
}

type HttpError = (StatusCode, String);

fn internal_error(error: impl std::fmt::Display) -> HttpError {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

async fn order(State(shop): State<Shop>, what: String) -> Result<String, HttpError> {
    let mut transaction = shop.pool.begin_with("begin immediate").await.map_err(internal_error)?;
    let inserted = sqlx::query("insert into purchase (what) values (?)").bind(&what);
    let order =
        inserted.execute(&mut *transaction).await.map_err(internal_error)?.last_insert_rowid();
    let mail = Mail { order, text: format!("thank you for ordering {what}") };
    let task = shop.client.task("send_mail", &mail).map_err(internal_error)?;
    let run = task.submit_in_transaction(&mut transaction).await.map_err(internal_error)?.run;
    if what == "nothing" {
        // Dropping the transaction rolls it back, including the mail task.
        return Err((StatusCode::UNPROCESSABLE_ENTITY, "there is nothing to sell".to_owned()));
    }
    transaction.commit().await.map_err(internal_error)?;
    shop.client.notify_committed();
    Ok(format!("{run}"))
}

async fn mail(State(shop): State<Shop>, Path(run): Path<i64>) -> Result<String, HttpError> {
    let result = shop
        .client
        .wait_until_ended(RunId(run), Duration::from_secs(10))
        .await
        .map_err(internal_error)?;
    Ok(result.info.run.state.to_string())
}

/// Serves requests until `stop` completes.
pub(crate) async fn run(
    database: &str,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::connect(database).await?;
    let pool = SqlitePool::connect(database).await?;
    sqlx::raw_sql(
        "create table if not exists purchase (id integer primary key, what text not null)",
    )
    .execute(&pool)
    .await?;
    let node = client.node_builder("shop")?.handler("send_mail", send_mail).start().await?;
    let shop = Router::new()
        .route("/orders", post(order))
        .route("/mails/{run}", get(mail))
        .with_state(Shop { client, pool });
    axum::serve(listener, shop).with_graceful_shutdown(stop).await?;
    node.stop().await;
    Ok(())
}

#[allow(dead_code, reason = "the tests call run")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}", listener.local_addr()?);
    run("sqlite:shop.db", listener, async { drop(tokio::signal::ctrl_c().await) }).await
}
