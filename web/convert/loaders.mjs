// Pure: the stock loaders of diffusion models, and the parallel loader that replaces each; the same of the VAE's nodes.

import { CHECKPOINT, LOADER, LOADERS } from '../plan/graph.mjs'

const GGUF = 'UnetLoaderGGUF' // this and the next are nodes of ComfyUI-GGUF
const GGUF_ADVANCED = 'UnetLoaderGGUFAdvanced'
const GGUFS = [GGUF, GGUF_ADVANCED]
const STOCK_CHECKPOINT = 'CheckpointLoaderSimple'

/** The parallel node for each of the VAE's stock nodes. */
const VAES = { VAEDecode: 'ParallelDiT_VAEDecode', VAEEncode: 'ParallelDiT_VAEEncode' }
const VAE_WIDGETS = { vaeFile: 'vae_name', vaeDtype: 'dtype' }
const DECODES = { inputs: ['samples', 'vae'], outputs: ['IMAGE'] }
const ENCODES = { inputs: ['pixels', 'vae'], outputs: ['LATENT'] }

/** By node type: its widgets in order, as meaning and name, its outputs in order, and its inputs without a widget. */
export const KINDS = {
  VAEDecode: { widgets: {}, ...DECODES },
  VAEEncode: { widgets: {}, ...ENCODES },
  [VAES.VAEDecode]: { widgets: VAE_WIDGETS, ...DECODES },
  [VAES.VAEEncode]: { widgets: VAE_WIDGETS, ...ENCODES },
  UNETLoader: { widgets: { file: 'unet_name', dtype: 'weight_dtype' }, outputs: ['MODEL'] },
  [GGUF]: { widgets: { file: 'unet_name' }, outputs: ['MODEL'] },
  [GGUF_ADVANCED]: {
    widgets: { file: 'unet_name', dequant: 'dequant_dtype', patch: 'patch_dtype', onDevice: 'patch_on_device' },
    outputs: ['MODEL']
  },
  [STOCK_CHECKPOINT]: { widgets: { file: 'ckpt_name' }, outputs: ['MODEL', 'CLIP', 'VAE'] },
  unCLIPCheckpointLoader: { widgets: { file: 'ckpt_name' }, outputs: ['MODEL', 'CLIP', 'VAE', 'CLIP_VISION'] },
  ImageOnlyCheckpointLoader: { widgets: { file: 'ckpt_name' }, outputs: ['MODEL', 'CLIP_VISION', 'VAE'] },
  [LOADER]: { widgets: { file: 'model_name', dtype: 'dtype', group: 'group' }, outputs: ['MODEL'] },
  [CHECKPOINT]: {
    widgets: { file: 'model_name', dtype: 'dtype', group: 'group' },
    outputs: ['MODEL', 'CLIP', 'VAE', 'CLIP_VISION']
  }
}
/** A widget's name in the editor, where it differs from its meaning. */
export const LABELS = { dtype: 'weight_dtype' }
/** Default values by a widget's meaning. */
export const DEFAULTS = {
  dtype: 'default',
  group: 1,
  dequant: 'default',
  patch: 'default',
  onDevice: false,
  vaeDtype: 'auto'
}
/** Meanings of values that a node does not use, so that nobody misses them. */
export const UNUSED = ['vaeFile']
export const STOCK_DTYPES = ['default', 'fp8_e4m3fn', 'fp8_e4m3fn_fast', 'fp8_e5m2']
/** The node property in which a parallel loader keeps its stock loader's type, size, properties and values. */
export const ORIGIN = 'paralleldit_stock'

const PARALLEL = {
  UNETLoader: LOADER,
  [GGUF]: LOADER,
  [GGUF_ADVANCED]: LOADER,
  [STOCK_CHECKPOINT]: CHECKPOINT,
  unCLIPCheckpointLoader: CHECKPOINT,
  ImageOnlyCheckpointLoader: CHECKPOINT
}
// ComfyUI has deprecated these loaders. A loader above reads the same models.
const DEPRECATED = ['CheckpointLoader', 'DiffusersLoader']
const PICKLE = /\.(ckpt|pt2?|bin|pth|pkl)$/i
const STOCK_FILE = /\.(safetensors|sft|ckpt|pt2?|bin|pth|pkl)$/i

/** Returns a loader's widget values by meaning. node: as it is saved. */
export function readValues(node) {
  const values = Array.isArray(node.widgets_values) ? node.widgets_values : []
  return Object.fromEntries(Object.keys(KINDS[node.type].widgets).map((meaning, place) => [meaning, values[place]]))
}

/** Returns whether a saved node is a stock loader of a diffusion model. */
export const isStock = (node) => node.type in PARALLEL

/** Returns whether a type is one of this pack's that replaces a stock one. */
export const isParallel = (type) => LOADERS.includes(type) || Object.values(VAES).includes(type)

/** Returns the other type of a VAE's node: the parallel one or the stock one. Null for other nodes. */
export function findOtherVae(type) {
  const [stock] = Object.entries(VAES).find(([, parallel]) => parallel === type) ?? []
  return VAES[type] ?? stock ?? null
}

/** Returns whether a node is a deprecated stock loader, which no parallel loader replaces. */
export const isDeprecated = ({ type }) => DEPRECATED.includes(type)

/**
 * Returns the parallel type for a stock loader. Null for other nodes, and for pickles: no parallel loader reads them.
 */
export const findParallelType = (node) =>
  isStock(node) && !PICKLE.test(readValues(node).file) ? PARALLEL[node.type] : null

/**
 * Returns the stock type for a saved parallel loader: the type that it had before, or another that offers its file.
 * Null for other nodes, and where no stock loader reads the model, such as a diffusers folder. exists: whether the
 * editor knows a type. offers: whether a type's list has a file.
 */
export function findStockType(node, { exists, offers }) {
  if (!LOADERS.includes(node.type)) return null
  const { file } = readValues(node)
  const before = node.properties?.[ORIGIN]?.type
  if (/\.gguf$/i.test(file ?? '')) return [before, GGUF].find((type) => GGUFS.includes(type) && exists(type)) ?? null
  if (!STOCK_FILE.test(file ?? '')) return null
  const usual = node.type === LOADER ? ['UNETLoader', STOCK_CHECKPOINT] : [STOCK_CHECKPOINT]
  const types = !GGUFS.includes(before) && PARALLEL[before] === node.type ? [before, ...usual] : usual
  return types.find((type) => offers(type, file)) ?? types[0]
}
