//! What a child says to its parent over the control socket: small messages, one per packet, encoded by postcard.
//!
//! Values never travel here, only news and text. Texts are clipped when they are made, so that a packet always fits
//! the socket whatever a program puts into its errors.

use serde::{Deserialize, Serialize};

/// The longest single text in a frame.
pub(crate) const TEXT: usize = 12 << 10;

/// Room for any frame: a chain of clipped texts is clipped again, see [`Frame::encode`].
pub(crate) const FRAME: usize = 64 << 10;

/// The longest result that travels in a frame.
pub(crate) const PLAIN: usize = 16 << 10;

/// One message from a child.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The child reached `init`, accepted the greeting and is about to run its function.
    Arrived,
    /// It takes part in the arena now, in this row and epoch. One that needs nothing of the arena never says so.
    Joined { row: u16, epoch: u16 },
    /// The child cannot or must not run the function.
    Refused { reason: String },
    /// A thread panics; it may still be caught. Sent before anything unwinds, so it is heard before what the unwinding
    /// does to others.
    Panicking(Panicking),
    /// The hooks have run for the panic that was told with that time, and it goes on.
    HooksRan { at: u64 },
    /// The panic that was told last was caught, and the process goes on.
    Caught,
    /// It does as told: it no longer ends when its parent does, if the system let it.
    Detached { disarmed: bool },
    /// The function returned a value: this one, or the one that lies in the letterbox.
    Returned { plain: Option<Vec<u8>> },
    /// The function returned an error, at this time. It `follows` if it only passes on that another process failed.
    Raised {
        at: u64,
        follows: bool,
        chain: Vec<String>,
        backtrace: Option<String>,
        /// The error itself, if it can be told: the name of its type, and its bytes.
        typed: Option<(String, Vec<u8>)>,
    },
    /// The function panicked, at this time.
    Panicked {
        at: u64,
        message: String,
        location: Option<String>,
        backtrace: Option<String>,
    },
    /// The function returned, but its value could not be put into the letterbox.
    ResultLost { at: u64, reason: String },
}

/// A panic that was told as it happened.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Panicking {
    pub(crate) at: u64,
    /// On the thread that runs the function.
    pub(crate) in_function: bool,
    /// Nothing can catch it: it ends the process.
    pub(crate) is_final: bool,
    pub(crate) message: String,
    pub(crate) location: Option<String>,
    /// Comes in a second word, where one was asked for: it takes long to make.
    pub(crate) backtrace: Option<String>,
}

impl Frame {
    /// The packet. Of a frame that is too large the least needed goes first: the backtrace, then the inner causes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        if let Ok(bytes) = postcard::to_stdvec(self)
            && bytes.len() <= FRAME
        {
            return bytes;
        }
        let smaller = match self {
            Frame::Raised {
                at,
                follows,
                chain,
                backtrace: Some(_),
                typed,
            } => Frame::Raised {
                at: *at,
                follows: *follows,
                chain: chain.clone(),
                backtrace: None,
                typed: typed.clone(),
            },
            Frame::Raised {
                at,
                follows,
                chain,
                backtrace: None,
                ..
            } if chain.len() > 2 => Frame::Raised {
                at: *at,
                follows: *follows,
                chain: vec![
                    chain[0].clone(),
                    "(further causes were too long to send)".to_owned(),
                ],
                backtrace: None,
                typed: None,
            },
            // The texts of all other frames are clipped to a sum that fits, so this is reached by none.
            _ => Frame::Refused {
                reason: "a message to the parent was too long".to_owned(),
            },
        };
        smaller.encode()
    }

    /// The frame in a packet; `None` for what is none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Frame> {
        postcard::from_bytes(bytes).ok()
    }
}

/// Shortens a text to what a frame may carry, and says that it did.
pub(crate) fn clip(mut text: String) -> String {
    if text.len() > TEXT {
        let mut end = TEXT;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let rest = text.len() - end;
        text.truncate(end);
        text.push_str(&format!("… ({rest} more bytes)"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_survives_the_socket() {
        let frame = Frame::Panicked {
            at: 7,
            message: "no".into(),
            location: Some("a.rs:1:2".into()),
            backtrace: None,
        };
        assert_eq!(Frame::decode(&frame.encode()), Some(frame));
    }

    #[test]
    fn what_is_not_a_frame_is_not_taken_for_one() {
        assert_eq!(Frame::decode(&[0xff; 16]), None);
        assert_eq!(Frame::decode(&[]), None);
    }

    #[test]
    fn a_huge_error_still_fits_and_keeps_its_first_sentence() {
        let chain: Vec<String> = (0..32)
            .map(|i| clip(format!("{i} ").repeat(100_000)))
            .collect();
        let bytes = Frame::Raised {
            at: 1,
            follows: false,
            chain,
            backtrace: Some(clip("x".repeat(1 << 20))),
            typed: Some(("T".into(), vec![0; TEXT])),
        }
        .encode();
        assert!(bytes.len() <= FRAME);
        let Some(Frame::Raised { chain, .. }) = Frame::decode(&bytes) else {
            panic!("not an error any more")
        };
        assert!(chain[0].starts_with("0 0 0"));
    }

    #[test]
    fn clipping_respects_characters() {
        let text = clip("ä".repeat(TEXT));
        assert!(text.contains("more bytes"));
        assert!(text.len() < TEXT + 64);
    }
}
