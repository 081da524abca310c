//! Reads YUV4MPEG2, frame by frame, straight into the caller's buffers.
//!
//! The crate `y4m` understands the stream's header; the frames are read here, because a frame should land in the
//! memory it will be shared from instead of in a decoder's own buffer. The header is read without reading ahead: the
//! process that looks at the header of its standard input can leave the frames to another one.

use std::io::{BufReader, ErrorKind, Read};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Place, Result};

/// Longest line (stream header or frame header) that is accepted, as in the crate `y4m`.
const LONGEST_LINE: usize = 1024;
const MAGIC: &[u8] = b"YUV4MPEG2";
/// Larger frames are refused: 1 GiB is far beyond 8K video, so this is a damaged header.
const LARGEST_FRAME: u64 = 1 << 30;

/// The size of a video's planes and its speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Format {
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// Size of each of the two chroma planes; 0×0 where the video has none.
    pub(crate) chroma_width: usize,
    pub(crate) chroma_height: usize,
    /// Frames per second, as a fraction; neither part is 0.
    pub(crate) rate: (u64, u64),
}

impl Format {
    /// A 4:2:0 video at 25 frames per second.
    pub(crate) fn yuv420(width: usize, height: usize) -> Self {
        Self {
            width,
            height,
            chroma_width: width.div_ceil(2),
            chroma_height: height.div_ceil(2),
            rate: (25, 1),
        }
    }

    /// Bytes of the luma plane: `height` rows of `width`.
    pub(crate) fn luma_len(&self) -> usize {
        self.width * self.height
    }

    /// Bytes of both chroma planes: all of Cb, then all of Cr.
    pub(crate) fn chroma_len(&self) -> usize {
        2 * self.chroma_width * self.chroma_height
    }

    pub(crate) fn seconds(&self, frame: u64) -> f64 {
        let (frames, seconds) = self.rate;
        frame as f64 * seconds as f64 / frames as f64
    }
}

/// The first line of a stream, understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) format: Format,
    /// Its length, newline included: the first frame begins here.
    pub(crate) bytes: u64,
}

impl Header {
    /// Reads the header and not a byte more. `name` is what errors call the stream.
    pub(crate) fn read(reader: &mut impl Read, name: &str) -> Result<Self> {
        let mut line = Vec::with_capacity(128);
        loop {
            let mut byte = [0];
            let place = || Place::at_byte(name, line.len() as u64);
            match reader.read(&mut byte) {
                Ok(0) if line.is_empty() => return Err(Error::input(place(), "it is empty")),
                Ok(0) => {
                    check_magic(&line, name)?;
                    return Err(Error::input(
                        place(),
                        "it ends in the middle of the stream header",
                    ));
                }
                Ok(_) if byte[0] == b'\n' => break,
                Ok(_) => line.push(byte[0]),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(Error::input(place(), format!("reading failed: {error}")));
                }
            }
            if line.len() == MAGIC.len() {
                check_magic(&line, name)?;
            }
            if line.len() > LONGEST_LINE {
                let problem = format!("the stream header is longer than {LONGEST_LINE} bytes");
                return Err(Error::input(
                    Place::at_byte(name, line.len() as u64),
                    problem,
                ));
            }
        }
        check_magic(&line, name)?;
        let bytes = line.len() as u64 + 1;
        let format = parse_header(&line, name)?;
        Ok(Self { format, bytes })
    }
}

fn check_magic(line: &[u8], name: &str) -> Result<()> {
    let shown = &line[..line.len().min(MAGIC.len())];
    let whole_word = line.len() <= MAGIC.len() || line[MAGIC.len()] == b' ';
    if shown == MAGIC && whole_word {
        return Ok(());
    }
    let problem = format!(
        "it is no YUV4MPEG2 stream: it begins with \"{}\" instead of \"YUV4MPEG2\"; convert it first, for example with \
         `ffmpeg -i VIDEO -pix_fmt yuv420p -f yuv4mpegpipe -`",
        shown.escape_ascii()
    );
    Err(Error::input(Place::at_byte(name, 0), problem))
}

fn parse_header(line: &[u8], name: &str) -> Result<Format> {
    let bad = |problem: String| Error::input(Place::at_byte(name, 0), problem);
    let field = |tag: u8| {
        let mut fields = line.split(|&byte| byte == b' ').skip(1);
        fields
            .find(|field| field.first() == Some(&tag))
            .map(|field| &field[1..])
    };
    // The size is looked at here first: `y4m` multiplies it unchecked.
    let size = |tag: u8, what: &str| {
        let digits = field(tag).ok_or_else(|| bad(format!("the stream header gives no {what}")))?;
        let number = str::from_utf8(digits)
            .ok()
            .and_then(|digits| digits.parse::<u32>().ok());
        number.ok_or_else(|| {
            bad(format!(
                "the stream header gives \"{}\" as {what}",
                digits.escape_ascii()
            ))
        })
    };
    let (width, height) = (size(b'W', "width")?, size(b'H', "height")?);
    if width == 0 || height == 0 {
        return Err(bad(format!("its frames have no pixels: {width}×{height}")));
    }
    // Three planes of this size are the most that any supported colour space has.
    if 3 * u64::from(width) > LARGEST_FRAME / u64::from(height) {
        return Err(bad(format!(
            "its frames are too large: {width}×{height}; the limit is 1 GiB a frame"
        )));
    }

    let unsupported = || {
        let colour = field(b'C').unwrap_or_default().escape_ascii();
        bad(format!(
            "its colour space \"{colour}\" is not supported; 8 bit 420, 422, 444 and mono are: convert it with \
             `ffmpeg -i VIDEO -pix_fmt yuv420p -f yuv4mpegpipe -`"
        ))
    };
    let header = [line, b"\n"].concat();
    let header = y4m::Decoder::new(header.as_slice()).map_err(|error| match error {
        y4m::Error::UnknownColorspace => unsupported(),
        error => bad(format!(
            "the stream header \"{}\" is damaged: {error}",
            line.escape_ascii()
        )),
    })?;

    use y4m::Colorspace::{C420, C420jpeg, C420mpeg2, C420paldv, C422, C444, Cmono};
    let (width, height) = (header.get_width(), header.get_height());
    let (chroma_width, chroma_height) = match header.get_colorspace() {
        Cmono => (0, 0),
        C420 | C420jpeg | C420paldv | C420mpeg2 => (width.div_ceil(2), height.div_ceil(2)),
        C422 => (width.div_ceil(2), height),
        C444 => (width, height),
        _ => return Err(unsupported()),
    };
    // "0:0" means that the speed is not known; 25 is what a missing field means to most readers, `y4m` among them.
    let rate = match header.get_framerate() {
        y4m::Ratio { num: 0, .. } | y4m::Ratio { den: 0, .. } => (25, 1),
        rate => (rate.num as u64, rate.den as u64),
    };
    Ok(Format {
        width,
        height,
        chroma_width,
        chroma_height,
        rate,
    })
}

/// The frames of a stream whose header has been read.
pub(crate) struct Video<R> {
    reader: BufReader<R>,
    format: Format,
    name: String,
    /// Number of the next frame.
    frame: u64,
    /// Bytes consumed since the beginning of the stream.
    byte: u64,
}

impl<R: Read> Video<R> {
    /// Reads on where [`Header::read`] stopped.
    pub(crate) fn after(header: &Header, reader: R, name: &str) -> Self {
        Self {
            // Only frame headers go through this buffer: larger reads pass it by.
            reader: BufReader::with_capacity(512, reader),
            format: header.format,
            name: name.to_owned(),
            frame: 0,
            byte: header.bytes,
        }
    }

    /// Reads the next frame into `luma` ([`Format::luma_len`] bytes) and `chroma` ([`Format::chroma_len`] bytes: Cb,
    /// then Cr). Returns its number, or nothing at the end of the stream.
    pub(crate) fn read(&mut self, luma: &mut [u8], chroma: &mut [u8]) -> Result<Option<u64>> {
        assert_eq!(luma.len(), self.format.luma_len());
        assert_eq!(chroma.len(), self.format.chroma_len());
        if !self.read_frame_header()? {
            if self.frame == 0 {
                return Err(self.error("it has a stream header but no frames"));
            }
            return Ok(None);
        }
        let total = luma.len() + chroma.len();
        self.read_plane(luma, 0, total)?;
        self.read_plane(chroma, luma.len(), total)?;
        let frame = self.frame;
        self.frame += 1;
        Ok(Some(frame))
    }

    /// Reads "FRAME", perhaps parameters, and the newline. False: the stream ended before it.
    fn read_frame_header(&mut self) -> Result<bool> {
        const WORD: &[u8] = b"FRAME";
        for index in 0..=LONGEST_LINE {
            let mut byte = [0];
            if self.read_some(&mut byte)? == 0 {
                if index == 0 {
                    return Ok(false);
                }
                return Err(self.error("it ends in the middle of a frame header"));
            }
            let fits = match WORD.get(index) {
                Some(letter) => byte[0] == *letter,
                None => index > WORD.len() || matches!(byte[0], b' ' | b'\n'),
            };
            if !fits {
                let problem = format!(
                    "no frame begins here: byte {index} of \"FRAME\" is \"{}\"; the stream is damaged, or its frames \
                     are not {}×{}",
                    byte.escape_ascii(),
                    self.format.width,
                    self.format.height
                );
                return Err(self.error(problem));
            }
            self.byte += 1;
            if index >= WORD.len() && byte[0] == b'\n' {
                return Ok(true);
            }
        }
        Err(self.error(format!(
            "the frame header is longer than {LONGEST_LINE} bytes"
        )))
    }

    fn read_plane(&mut self, plane: &mut [u8], before: usize, total: usize) -> Result<()> {
        let mut filled = 0;
        while filled < plane.len() {
            let count = self.read_some(&mut plane[filled..])?;
            if count == 0 {
                let has = before + filled;
                return Err(self.error(format!(
                    "it ends in the middle of a frame: {has} of {total} bytes are there"
                )));
            }
            filled += count;
            self.byte += count as u64;
        }
        Ok(())
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            match self.reader.read(buffer) {
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.error(format!("reading failed: {error}"))),
            }
        }
    }

    fn error(&self, problem: impl Into<String>) -> Error {
        let place = Place {
            frame: Some(self.frame),
            ..Place::at_byte(&*self.name, self.byte)
        };
        Error::input(place, problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Luma and chroma.
    type Planes = (Vec<u8>, Vec<u8>);

    fn read_all(stream: &[u8]) -> Result<(Format, Vec<Planes>)> {
        let mut reader = stream;
        let header = Header::read(&mut reader, "test.y4m")?;
        let mut video = Video::after(&header, reader, "test.y4m");
        let mut frames = Vec::new();
        loop {
            let mut luma = vec![0; header.format.luma_len()];
            let mut chroma = vec![0; header.format.chroma_len()];
            match video.read(&mut luma, &mut chroma)? {
                Some(frame) => assert_eq!(frame, frames.len() as u64),
                None => return Ok((header.format, frames)),
            }
            frames.push((luma, chroma));
        }
    }

    fn refusal(stream: &[u8]) -> String {
        let error = read_all(stream).expect_err("the stream should have been refused");
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    }

    #[track_caller]
    fn assert_refused(stream: &[u8], place: &str, problem: &str) {
        let refusal = refusal(stream);
        assert!(refusal.starts_with(&format!("{place}: ")), "{refusal}");
        assert!(refusal.contains(problem), "{refusal}");
    }

    #[test]
    fn planes_land_in_the_buffers_they_are_given() {
        for (colour, chroma_len) in [
            ("C420jpeg ", 4),
            ("C420 ", 4),
            ("", 4),
            ("C422 ", 8),
            ("C444 ", 12),
            ("Cmono ", 0),
        ] {
            let mut stream =
                format!("YUV4MPEG2 W3 H2 F30000:1001 {colour}Ip A1:1 XYSCSS=420\n").into_bytes();
            // 4:2:0 of 3×2: two chroma planes of 2×1; 4:2:2: of 2×2; 4:4:4: of 3×2.
            for frame in 0..2 {
                stream.extend_from_slice(if frame == 0 {
                    b"FRAME\n"
                } else {
                    b"FRAME Ip\n"
                });
                stream.extend((0..6 + chroma_len).map(|index| (100 * frame + index) as u8));
            }
            let (format, frames) = read_all(&stream).unwrap();
            assert_eq!(
                (format.width, format.height, format.rate),
                (3, 2, (30000, 1001)),
                "{colour}"
            );
            assert_eq!(frames.len(), 2, "{colour}");
            assert_eq!(frames[1].0, (100..106).collect::<Vec<u8>>());
            assert_eq!(
                frames[1].1,
                (106..106 + chroma_len as u8).collect::<Vec<u8>>()
            );
        }
    }

    #[test]
    fn the_header_is_read_without_reading_ahead() {
        let mut reader = &b"YUV4MPEG2 W1 H1 Cmono\nFRAME\nx"[..];
        let header = Header::read(&mut reader, "test").unwrap();
        assert_eq!(reader, b"FRAME\nx");
        assert_eq!(header.bytes, 22);
    }

    #[test]
    fn an_unknown_speed_counts_as_25() {
        let (format, _) = read_all(b"YUV4MPEG2 W1 H1 F0:0 Cmono\nFRAME\nx").unwrap();
        assert_eq!(format.seconds(50), 2.0);
    }

    #[test]
    fn what_is_no_stream_is_refused_with_what_it_begins_with() {
        assert_refused(b"", "test.y4m, byte 0", "it is empty");
        assert_refused(
            b"\x1aE\xdf\xa3 and so on and on",
            "test.y4m, byte 0",
            r"\x1aE\xdf\xa3",
        );
        assert_refused(b"\n", "test.y4m, byte 0", "no YUV4MPEG2");
        assert_refused(b"YUV4MPEG3 W1 H1\n", "test.y4m, byte 0", "no YUV4MPEG2");
        assert_refused(b"YUV4MPEG2W1 H1\n", "test.y4m, byte 0", "no YUV4MPEG2");
        assert_refused(&[0; 4096], "test.y4m, byte 0", "no YUV4MPEG2");
    }

    #[test]
    fn a_damaged_header_is_refused_with_the_field() {
        assert_refused(
            b"YUV4MPEG2 W16 H",
            "test.y4m, byte 15",
            "middle of the stream header",
        );
        assert_refused(b"YUV4MPEG2 H1\n", "test.y4m, byte 0", "no width");
        assert_refused(
            b"YUV4MPEG2 W2 H-1\n",
            "test.y4m, byte 0",
            "\"-1\" as height",
        );
        assert_refused(b"YUV4MPEG2 W2 H1 F25\n", "test.y4m, byte 0", "damaged");
        let long = [&b"YUV4MPEG2 W2 H2 X"[..], &[b'x'; 2000]].concat();
        assert_refused(&long, "test.y4m, byte 1025", "longer than 1024");
    }

    #[test]
    fn zero_and_monstrous_sizes_are_refused_with_the_size() {
        assert_refused(
            b"YUV4MPEG2 W0 H9 C420\n",
            "test.y4m, byte 0",
            "no pixels: 0×9",
        );
        assert_refused(
            b"YUV4MPEG2 W4294967295 H4294967295\n",
            "test.y4m, byte 0",
            "too large",
        );
        assert_refused(
            b"YUV4MPEG2 W99999999999999999999 H1\n",
            "test.y4m, byte 0",
            "as width",
        );
    }

    #[test]
    fn unsupported_colour_spaces_are_refused_by_name() {
        for colour in [
            "420p10", "422p12", "444p10", "mono12", "411", "444alpha", "",
        ] {
            let stream = format!("YUV4MPEG2 W2 H2 C{colour}\nFRAME\n");
            assert_refused(
                stream.as_bytes(),
                "test.y4m, byte 0",
                &format!("colour space \"{colour}\" is not supported"),
            );
        }
    }

    #[test]
    fn a_truncated_stream_is_refused_with_the_frame_and_the_byte() {
        let header = b"YUV4MPEG2 W2 H2 Cmono\n"; // 22 bytes; a frame is 6 + 4
        let stream = [&header[..], b"FRAME\nabcd", b"FRAME\nabcd"].concat();
        assert!(read_all(&stream).is_ok());
        assert_refused(&stream[..22], "test.y4m, frame 0, byte 22", "no frames");
        assert_refused(
            &stream[..25],
            "test.y4m, frame 0, byte 25",
            "middle of a frame header",
        );
        assert_refused(&stream[..28], "test.y4m, frame 0, byte 28", "0 of 4 bytes");
        assert_refused(&stream[..41], "test.y4m, frame 1, byte 41", "3 of 4 bytes");
        let shifted = [&stream[..32], b"x", &stream[32..]].concat();
        assert_refused(
            &shifted,
            "test.y4m, frame 1, byte 32",
            "no frame begins here",
        );
    }

    #[test]
    fn every_prefix_of_a_stream_is_refused_or_ends_between_frames() {
        let stream = b"YUV4MPEG2 W2 H2 C420\nFRAME\nabcdefFRAME Ip\nabcdef";
        for length in 0..stream.len() {
            match read_all(&stream[..length]) {
                Ok((_, frames)) => assert_eq!((length, frames.len()), (33, 1)),
                Err(error) => assert_eq!(error.exit_code(), 2),
            }
        }
    }
}
