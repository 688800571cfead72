// Pure: stock's loaders of a diffusion model, and the parallel one that stands for each.

import { CHECKPOINT, LOADER, LOADERS } from '../plan/graph.mjs'

const GGUF = 'UnetLoaderGGUF' // of ComfyUI-GGUF, as is the next
const GGUF_ADVANCED = 'UnetLoaderGGUFAdvanced'
const GGUFS = [GGUF, GGUF_ADVANCED]
const WHOLE = 'CheckpointLoaderSimple'

/** By type, its widgets in their order, each by what it means, and its outputs in theirs. */
export const KINDS = {
  UNETLoader: { widgets: { file: 'unet_name', dtype: 'weight_dtype' }, outputs: ['MODEL'] },
  [GGUF]: { widgets: { file: 'unet_name' }, outputs: ['MODEL'] },
  [GGUF_ADVANCED]: {
    widgets: { file: 'unet_name', dequant: 'dequant_dtype', patch: 'patch_dtype', onDevice: 'patch_on_device' },
    outputs: ['MODEL']
  },
  [WHOLE]: { widgets: { file: 'ckpt_name' }, outputs: ['MODEL', 'CLIP', 'VAE'] },
  unCLIPCheckpointLoader: { widgets: { file: 'ckpt_name' }, outputs: ['MODEL', 'CLIP', 'VAE', 'CLIP_VISION'] },
  ImageOnlyCheckpointLoader: { widgets: { file: 'ckpt_name' }, outputs: ['MODEL', 'CLIP_VISION', 'VAE'] },
  [LOADER]: { widgets: { file: 'model_name', dtype: 'dtype', group: 'group' }, outputs: ['MODEL'] },
  [CHECKPOINT]: {
    widgets: { file: 'model_name', dtype: 'dtype', group: 'group' },
    outputs: ['MODEL', 'CLIP', 'VAE', 'CLIP_VISION']
  }
}
/** How a widget is called in the editor, where not by what it means. */
export const LABELS = { dtype: 'weight_dtype' }
/** What a widget has that says nothing. */
export const USUAL = { dtype: 'default', group: 1, dequant: 'default', patch: 'default', onDevice: false }
export const STOCK_DTYPES = ['default', 'fp8_e4m3fn', 'fp8_e4m3fn_fast', 'fp8_e5m2']
/** The property in which a parallel loader keeps what the stock one was. */
export const ORIGIN = 'paralleldit_stock'

const PARALLEL = {
  UNETLoader: LOADER,
  [GGUF]: LOADER,
  [GGUF_ADVANCED]: LOADER,
  [WHOLE]: CHECKPOINT,
  unCLIPCheckpointLoader: CHECKPOINT,
  ImageOnlyCheckpointLoader: CHECKPOINT
}
// Deprecated by ComfyUI, and for models that have a loader above.
const OLD = ['CheckpointLoader', 'DiffusersLoader']
const PICKLE = /\.(ckpt|pt2?|bin|pth|pkl)$/i
const STOCK_FILE = /\.(safetensors|sft|ckpt|pt2?|bin|pth|pkl)$/i

/** What a loader's widgets have, by what they mean. node: as it is saved. */
export function valuesOf(node) {
  const values = Array.isArray(node.widgets_values) ? node.widgets_values : []
  return Object.fromEntries(Object.keys(KINDS[node.type].widgets).map((meaning, place) => [meaning, values[place]]))
}

/** Whether a node, as it is saved, is a stock loader of a diffusion model. */
export const isStock = (node) => node.type in PARALLEL

/** Whether it is one that no parallel loader stands for, while another stock one would do. */
export const isOld = ({ type }) => OLD.includes(type)

/** The parallel type for such a loader; null for another node, and for a pickle, which no parallel loader reads. */
export const parallelFor = (node) => (isStock(node) && !PICKLE.test(valuesOf(node).file) ? PARALLEL[node.type] : null)

/**
 * The stock type for a parallel loader, as it is saved: what it was, or another that offers its file; null where there
 * is none, as for a diffusers folder, and for a node that is no parallel loader. exists: whether the editor knows a
 * type; offers: whether a type's list has a file.
 */
export function stockFor(node, { exists, offers }) {
  if (!LOADERS.includes(node.type)) return null
  const { file } = valuesOf(node)
  const was = node.properties?.[ORIGIN]?.type
  if (/\.gguf$/i.test(file ?? '')) return [was, GGUF].find((type) => GGUFS.includes(type) && exists(type)) ?? null
  if (!STOCK_FILE.test(file ?? '')) return null
  const usual = node.type === LOADER ? ['UNETLoader', WHOLE] : [WHOLE]
  const types = !GGUFS.includes(was) && PARALLEL[was] === node.type ? [was, ...usual] : usual
  return types.find((type) => offers(type, file)) ?? types[0]
}
