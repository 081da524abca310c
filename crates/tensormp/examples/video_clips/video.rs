//! Videos in memory: from a Y4M file, or generated.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use tensormp::pipeline::StageError;

use crate::COLOURS;

/// Frames of a generated video, and their size.
const GENERATED: (usize, usize, usize) = (48, 128, 96);

/// All frames of a video, in 4:2:0 with 8 bits.
pub(crate) struct Video {
    width: usize,
    height: usize,
    frames: Vec<Planes>,
}

/// A frame: luma, and chroma at half the resolution.
struct Planes {
    y: Vec<u8>,
    u: Vec<u8>,
    v: Vec<u8>,
}

impl Video {
    pub(crate) fn read(path: &Path) -> Result<Self, StageError> {
        let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let file = File::open(path).map_err(|error| told(&error))?;
        let mut decoder = y4m::decode(BufReader::new(file)).map_err(|error| told(&error))?;
        let (width, height) = (decoder.get_width(), decoder.get_height());
        let space = decoder.get_colorspace();
        if !matches!(
            space,
            y4m::Colorspace::C420
                | y4m::Colorspace::C420jpeg
                | y4m::Colorspace::C420mpeg2
                | y4m::Colorspace::C420paldv
        ) {
            return Err(told(&format_args!("{space:?} frames; 4:2:0 with 8 bits is read")).into());
        }
        let mut frames = Vec::new();
        loop {
            match decoder.read_frame() {
                Ok(frame) => frames.push(Planes {
                    y: frame.get_y_plane().to_vec(),
                    u: frame.get_u_plane().to_vec(),
                    v: frame.get_v_plane().to_vec(),
                }),
                Err(y4m::Error::EOF) => break,
                Err(error) => return Err(told(&error).into()),
            }
        }
        Self {
            width,
            height,
            frames,
        }
        .checked()
        .map_err(|error| told(&error).into())
    }

    /// A video of moving waves.
    pub(crate) fn generated() -> Result<Self, StageError> {
        let (count, width, height) = GENERATED;
        let wave = |x: usize, y: usize, t: usize| {
            let phase = x as f32 * 0.11 + (y as f32 * 0.07).sin() * 2.0 + t as f32 * 0.35;
            (phase.sin() * 100.0 + 128.0) as u8
        };
        let plane = |step: usize, shift: usize, t: usize| {
            let at = move |index: usize| {
                let row = width / step;
                wave(index % row * step + shift, index / row * step, t)
            };
            (0..width / step * (height / step)).map(at).collect()
        };
        let frames = (0..count).map(|t| Planes {
            y: plane(1, 0, t),
            u: plane(2, 40, t),
            v: plane(2, 80, t),
        });
        Self {
            width,
            height,
            frames: frames.collect(),
        }
        .checked()
    }

    fn checked(self) -> Result<Self, StageError> {
        let (half, chroma) = (self.width.div_ceil(2), self.height.div_ceil(2));
        let whole = |frame: &Planes| {
            frame.y.len() == self.width * self.height
                && frame.u.len() == half * chroma
                && frame.v.len() == half * chroma
        };
        if self.frames.is_empty() || self.width == 0 || self.height == 0 {
            return Err("there is no frame in it".into());
        }
        if !self.frames.iter().all(whole) {
            return Err("its frames are not of the size that its header says".into());
        }
        Ok(self)
    }

    pub(crate) fn frames(&self) -> usize {
        self.frames.len()
    }

    /// Writes frame `index` into three planes (red, green, blue) of `size` × `size`, from -1 to 1, one every `stride`
    /// elements.
    pub(crate) fn write(&self, index: usize, size: usize, stride: usize, planes: &mut [f32]) {
        let frame = &self.frames[index % self.frames.len()];
        let half = self.width.div_ceil(2);
        for row in 0..size {
            let y = row * self.height / size;
            for column in 0..size {
                let x = column * self.width / size;
                let chroma = y / 2 * half + x / 2;
                let luma = f32::from(frame.y[y * self.width + x]);
                let (u, v) = (
                    f32::from(frame.u[chroma]) - 128.0,
                    f32::from(frame.v[chroma]) - 128.0,
                );
                // BT.601, full range.
                let colours: [f32; COLOURS] = [
                    luma + 1.402 * v,
                    luma - 0.344_136 * u - 0.714_136 * v,
                    luma + 1.772 * u,
                ];
                for (plane, colour) in colours.into_iter().enumerate() {
                    planes[plane * stride + row * size + column] = colour / 127.5 - 1.0;
                }
            }
        }
    }
}
