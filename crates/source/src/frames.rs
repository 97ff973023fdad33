//! Compressed files that consist of several frames.
//!
//! Both formats allow frames one after another, and a compressor with several threads makes them.
//! The decoders of the libraries stop after one frame. Those here read on until the file ends
//! behind a frame. A file that ends inside a frame is an error.

use std::io::{self, BufRead, Read};

use lz4_flex::frame::FrameDecoder as Lz4Decoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// The data of a file of lz4 frames.
pub(crate) struct Lz4Frames<R: BufRead>(Option<Lz4Decoder<R>>);

impl<R: BufRead> Lz4Frames<R> {
    /// Reads the frames of `file`.
    pub(crate) fn new(file: R) -> Lz4Frames<R> {
        Lz4Frames(Some(Lz4Decoder::new(file)))
    }
}

impl<R: BufRead> Read for Lz4Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = &mut self.0 {
            let read = decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let is_over = decoder.get_mut().fill_buf()?.is_empty();
            // A decoder has buffers for the blocks of one frame.
            self.0 = self.0.take().filter(|_| !is_over).map(|ended| Lz4Decoder::new(ended.into_inner()));
        }
        Ok(0)
    }
}

/// The data of a file of Zstandard frames. Skippable frames have none.
pub(crate) struct ZstdFrames<R: BufRead> {
    file: R,
    decoder: FrameDecoder,
}

impl<R: BufRead> ZstdFrames<R> {
    /// Reads the frames of `file`.
    pub(crate) fn new(file: R) -> ZstdFrames<R> {
        ZstdFrames { file, decoder: FrameDecoder::new() }
    }

    /// Begins the next frame; false at the end of the file.
    fn begin(&mut self) -> io::Result<bool> {
        loop {
            if self.file.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.file) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    if io::copy(&mut self.file.by_ref().take(length), &mut io::sink())? < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error.to_string())),
            }
        }
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.decoder.can_collect() == 0 {
            if self.decoder.is_finished() {
                if !self.begin()? {
                    return Ok(0);
                }
            } else {
                self.decoder
                    .decode_blocks(&mut self.file, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(|error| io::Error::other(error.to_string()))?;
            }
        }
        self.decoder.read(buffer)
    }
}
