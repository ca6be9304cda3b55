use super::{CompanionLink, LinkEvent, Member, NewsQueue, Role};
use crate::harness::companion_socket::LONGEST;
use crate::harness::node_pid::{Node, NodePid};
use crate::protocol::companion::{CompanionLine, CompanionOrder, FromCompanion};
use crate::protocol::worker::Event;
use std::path::Path;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

fn introduction(pid: u32, rank: u32) -> String {
    format!(
        "{{\"event\":\"companion\",\"protocol\":1,\"pid\":{pid},\"rank\":{rank},\"framework\":\"loop\",\"grade\":\"exact\"}}\n"
    )
}

const STEP: &str = "{\"event\":\"step\",\"step\":1,\"samples\":1,\"epoch\":0,\"micro_batches\":1,\"data_wait_ms\":0,\"compute_ms\":1}\n";
const FAILED: &str =
    "{\"event\":\"failed\",\"class\":\"device_out_of_memory\",\"message\":\"out of memory\",\"step\":1}\n";

async fn connect(socket: &Path, text: &str) -> UnixStream {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

fn place() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("x-companion.sock");
    (dir, socket)
}

#[tokio::test]
async fn rank_0_speaks_and_other_ranks_only_fail() {
    let (_dir, socket) = place();
    let mut link = CompanionLink::listen(socket.clone(), NewsQueue::new()).unwrap();
    let _second = connect(&socket, &(introduction(8, 1) + STEP)).await;
    assert!(matches!(link.receive().await, LinkEvent::Introduced { role: Role::Rank, .. }));
    let first = connect(&socket, &(introduction(7, 0) + STEP)).await;
    assert!(
        matches!(link.receive().await, LinkEvent::Introduced { role: Role::Speaker, .. }),
        "a step of rank 1 is not reported"
    );
    let LinkEvent::Message(_, message) = link.receive().await else { panic!("the step of rank 0") };
    assert!(matches!(*message, FromCompanion::Event(Event::Step(_))));
    let _stranger = connect(&socket, &(FAILED.to_owned() + STEP)).await;
    let third = connect(&socket, &(introduction(9, 2) + FAILED)).await;
    assert!(matches!(link.receive().await, LinkEvent::Introduced { .. }), "a stranger's failure does not count");
    let LinkEvent::Message(_, message) = link.receive().await else { panic!("the failure of rank 2") };
    assert!(matches!(*message, FromCompanion::Event(Event::Failed(_))));
    link.order(&CompanionOrder::Checkpoint);
    link.order(&CompanionOrder::Published { step: 3 });
    let mut lines = BufReader::new(first).lines();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), r#"{"order":"checkpoint"}"#);
    assert_eq!(lines.next_line().await.unwrap().unwrap(), r#"{"order":"published","step":3}"#);
    drop(third);
    assert!(matches!(
        link.receive().await,
        LinkEvent::Gone {
            member: Member { process: NodePid { node: Node::HERE, pid: 9 }, rank: 2, .. },
            role: Role::Rank
        }
    ));
    drop(lines);
    assert!(matches!(link.receive().await, LinkEvent::Gone { role: Role::Speaker, .. }));
    let _again = connect(&socket, &introduction(10, 0)).await;
    assert!(
        matches!(link.receive().await, LinkEvent::Introduced { role: Role::Speaker, .. }),
        "a second training speaks"
    );
}

#[tokio::test]
async fn what_a_rank_starts_does_not_act_for_it() {
    let (_dir, socket) = place();
    let mut link = CompanionLink::listen(socket.clone(), NewsQueue::new()).unwrap();
    let _rank = connect(&socket, &introduction(8, 1)).await;
    assert!(matches!(link.receive().await, LinkEvent::Introduced { role: Role::Rank, .. }));
    let staged = "{\"event\":\"staged\",\"step\":5,\"samples\":5,\"folder\":\".new-step-000000005.9\"}\n";
    let helper = connect(&socket, &(introduction(9, 1) + staged)).await;
    assert!(matches!(link.receive().await, LinkEvent::Introduced { role: Role::Other, .. }));
    assert!(matches!(link.receive().await, LinkEvent::RefusedSave(_)), "a part of rank 1 comes from rank 1");
    link.order(&CompanionOrder::Checkpoint);
    let mut lines = BufReader::new(helper).lines();
    let heard = lines.next_line().await.unwrap().unwrap();
    assert!(heard.contains("publish_failed"), "{heard}");
    drop(lines);
    assert!(matches!(link.receive().await, LinkEvent::Gone { role: Role::Other, .. }));
    assert_eq!(link.holders.len(), 1, "rank 1 is still there");
}

#[tokio::test]
async fn lines_that_are_not_understood_are_named_and_half_a_line_is_never_taken() {
    let (_dir, socket) = place();
    let mut link = CompanionLink::listen(socket.clone(), NewsQueue::new()).unwrap();
    let ended = "{\"event\":\"ended\",\"step\":5}\n";
    let mut first = connect(&socket, &(introduction(7, 0) + "what?\n\u{0}\n" + ended)).await;
    assert!(matches!(link.receive().await, LinkEvent::Introduced { .. }));
    assert!(matches!(link.receive().await, LinkEvent::Unreadable));
    assert!(matches!(link.receive().await, LinkEvent::Unreadable));
    let LinkEvent::Message(_, message) = link.receive().await else { panic!("the line after") };
    assert_eq!(*message, FromCompanion::Line(CompanionLine::Ended { step: 5 }));
    first.write_all(ended.trim_end().as_bytes()).await.unwrap();
    drop(first);
    assert!(matches!(link.receive().await, LinkEvent::Unreadable), "it was killed before the end of the line");
    assert!(matches!(link.receive().await, LinkEvent::Gone { role: Role::Speaker, .. }));
    let mut flood = connect(&socket, &introduction(8, 0)).await;
    assert!(matches!(link.receive().await, LinkEvent::Introduced { .. }));
    let long = vec![b'x'; LONGEST as usize + 1];
    let write = flood.write_all(&long);
    let (_, message) = tokio::join!(write, link.receive());
    assert!(matches!(message, LinkEvent::Unreadable));
    assert!(matches!(link.receive().await, LinkEvent::Gone { role: Role::Speaker, .. }), "the connection ends");
}

#[tokio::test]
async fn the_socket_is_removed_with_the_link() {
    let (_dir, socket) = place();
    std::fs::write(&socket, "a leftover").unwrap();
    let link = CompanionLink::listen(socket.clone(), NewsQueue::new()).unwrap();
    assert!(socket.exists() && !link.is_connected() && !link.has_speaker());
    drop(link);
    assert!(!socket.exists());
}
