import assert from 'node:assert/strict'
import { test } from 'node:test'

import { findParallelType, findStockType, isDeprecated, isStock, ORIGIN } from '../../web/convert/loaders.mjs'
import { convert } from '../../web/convert/workflow.mjs'
import { CHECKPOINT, LOADER } from '../../web/plan/graph.mjs'

const widget = (name, link = null) => ({ name, localized_name: name, type: 'COMBO', widget: { name }, link })
const output = (name, links = []) => ({ name, localized_name: name, type: name, links })
const properties = (type) => ({
  'Node name for S&R': type,
  cnr_id: 'comfy-core',
  ver: '0.3.40',
  models: [{ name: 'a' }]
})

const unet = (id, links, link = null) => ({
  id,
  type: 'UNETLoader',
  pos: [10, 20],
  size: [270, 82],
  title: 'Mine',
  mode: 4,
  color: '#322',
  inputs: [widget('unet_name', link), widget('weight_dtype')],
  outputs: [{ ...output('MODEL', links), slot_index: 0 }],
  properties: properties('UNETLoader'),
  widgets_values: ['a.safetensors', 'fp8_e4m3fn']
})
const checkpoint = (id, type, names, links) => ({
  id,
  type,
  pos: [0, 0],
  size: [300, 98],
  inputs: [widget('ckpt_name')],
  outputs: names.map((name, slot) => output(name, [links[slot]])),
  properties: properties(type),
  widgets_values: ['b.safetensors']
})
const LEAST = [240, 150]
const copy = (value) => JSON.parse(JSON.stringify(value))
const knows = { exists: () => true, offers: () => false }
const toParallel = (workflow) => convert(workflow, findParallelType, () => LEAST)
const toStock = (workflow, editor = knows) =>
  convert(
    workflow,
    (node) => findStockType(node, editor),
    () => LEAST
  )
/** As the editor has it: no node is smaller than its kind. */
function shown(workflow) {
  for (const node of workflow.nodes) node.size = node.size.map((side, axis) => Math.max(side, LEAST[axis]))
}

test('a stock loader becomes parallel and stock again with its file, links, place, title, colour and mode', () => {
  const inside = {
    id: 'sub',
    nodes: [unet(7, [3], 2)],
    links: [
      { id: 2, origin_id: -10, origin_slot: 0, target_id: 7, target_slot: 0 },
      { id: 3, origin_id: 7, origin_slot: 0, target_id: -20, target_slot: 0 }
    ],
    inputs: [{ name: 'unet_name', linkIds: [2] }],
    outputs: [{ name: 'MODEL', linkIds: [3] }]
  }
  const host = {
    id: 1,
    type: 'sub',
    size: [300, 200],
    properties: {
      proxyWidgets: [
        ['7', 'weight_dtype'],
        ['8', 'unet_name']
      ]
    }
  }
  const workflow = {
    id: 'root',
    nodes: [unet(5, [1]), host],
    links: [[1, 5, 0, 6, 0, 'MODEL']],
    definitions: { subgraphs: [inside] },
    extra: {
      linearData: {
        inputs: [
          [5, 'unet_name'],
          ['root:7:unet_name', 'unet_name'],
          [9, 'unet_name']
        ]
      }
    }
  }
  const before = copy(workflow)
  assert.deepEqual(toParallel(workflow), { count: 2, lost: [] })
  const [outer, inner] = [workflow.nodes[0], inside.nodes[0]]
  assert.deepEqual([outer.type, outer.title, outer.mode, outer.color, outer.pos], [LOADER, 'Mine', 4, '#322', [10, 20]])
  assert.deepEqual(outer.widgets_values, ['a.safetensors', 'fp8_e4m3fn', 1])
  assert.deepEqual(
    inner.inputs.map(({ name, widget, link }) => [name, widget.name, link]),
    [
      ['model_name', 'model_name', 2],
      ['dtype', 'dtype', null]
    ]
  )
  assert.deepEqual([workflow.links, inside.links], [before.links, before.definitions.subgraphs[0].links])
  assert.deepEqual(outer.properties.models, [{ name: 'a' }])
  assert.equal(outer.properties.cnr_id, 'paralleldit')
  assert.deepEqual(host.properties.proxyWidgets, [
    ['7', 'dtype'],
    ['8', 'unet_name']
  ])
  const app = [
    [5, 'model_name'],
    ['root:7:model_name', 'model_name'],
    [9, 'unet_name']
  ]
  assert.deepEqual(workflow.extra.linearData.inputs, app)
  shown(workflow)
  shown(inside)
  assert.deepEqual(toStock(workflow), { count: 2, lost: [] })
  const localized = (node) => Object.assign(node, copy({ inputs: node.inputs, outputs: node.outputs }))
  for (const node of [outer, inner]) {
    for (const slot of [...localized(node).inputs, ...node.outputs]) slot.localized_name = slot.name // the editor's part
  }
  workflow.nodes[1].size = before.nodes[1].size
  assert.deepEqual(copy(workflow), before)
})

test('outputs that move to another slot keep their links', () => {
  const names = ['MODEL', 'CLIP_VISION', 'VAE']
  const workflow = {
    id: 'root',
    nodes: [checkpoint(5, 'ImageOnlyCheckpointLoader', names, [1, 2, 3])],
    links: names.map((name, slot) => [slot + 1, 5, slot, 6, slot, name])
  }
  toParallel(workflow)
  const [node] = workflow.nodes
  assert.equal(node.type, CHECKPOINT)
  assert.deepEqual(
    node.outputs.map(({ name, links }) => [name, links]),
    [
      ['MODEL', [1]],
      ['CLIP', null],
      ['VAE', [3]],
      ['CLIP_VISION', [2]]
    ]
  )
  assert.deepEqual(
    workflow.links.map((link) => link[2]),
    [0, 3, 2]
  )
  toStock(workflow)
  assert.deepEqual(
    workflow.links.map((link) => link[2]),
    [0, 1, 2]
  )
  assert.equal(workflow.nodes[0].type, 'ImageOnlyCheckpointLoader')
})

test("unCLIP's loader becomes parallel and stock again with the links of its four outputs", () => {
  const names = ['MODEL', 'CLIP', 'VAE', 'CLIP_VISION']
  const workflow = {
    id: 'root',
    nodes: [checkpoint(5, 'unCLIPCheckpointLoader', names, [1, 2, 3, 4])],
    links: names.map((name, slot) => [slot + 1, 5, slot, 6, slot, name])
  }
  const links = copy(workflow.links)
  const [node] = workflow.nodes
  for (const [made, type] of [
    [toParallel, CHECKPOINT],
    [toStock, 'unCLIPCheckpointLoader']
  ]) {
    assert.deepEqual(made(workflow), { count: 1, lost: [] })
    assert.equal(node.type, type)
    assert.equal(node.widgets_values[0], 'b.safetensors')
    assert.deepEqual(
      node.outputs.map(({ name, links }) => [name, ...links]),
      names.map((name, slot) => [name, slot + 1])
    )
    assert.deepEqual(workflow.links, links)
  }
})

test('the extra settings of the advanced GGUF loader come back when it is stock again', () => {
  const type = 'UnetLoaderGGUFAdvanced'
  const values = ['a.gguf', 'float16', 'target', true]
  const names = ['unet_name', 'dequant_dtype', 'patch_dtype', 'patch_on_device']
  const saved = { ...unet(5, [1]), type, inputs: names.map((name) => widget(name)), widgets_values: values }
  saved.properties = { ...properties(type), cnr_id: 'ComfyUI-GGUF' }
  const workflow = { id: 'root', nodes: [saved], links: [[1, 5, 0, 6, 0, 'MODEL']] }
  const [node] = workflow.nodes
  assert.deepEqual(toParallel(workflow), { count: 1, lost: [] })
  assert.deepEqual([node.type, node.widgets_values], [LOADER, ['a.gguf', 'default', 1]])
  assert.deepEqual(
    node.inputs.map(({ name }) => name),
    ['model_name']
  )
  const without = copy(workflow)
  assert.deepEqual(toStock(workflow), { count: 1, lost: [] })
  assert.deepEqual([node.type, node.widgets_values, node.properties.cnr_id], [type, values, 'ComfyUI-GGUF'])
  assert.ok(!(ORIGIN in node.properties))
  toStock(without, { ...knows, exists: (name) => name !== type })
  assert.deepEqual([without.nodes[0].type, without.nodes[0].widgets_values], ['UnetLoaderGGUF', ['a.gguf']])
  saved.inputs = [widget('unet_name'), widget('dequant_dtype', 7)]
  workflow.links.push([7, 4, 0, 5, 1, 'COMBO'])
  assert.deepEqual(toParallel(workflow).lost, ['dequant_dtype'], 'a link has no place to be kept')
})

test("ComfyUI's deprecated loaders are recognised and not changed", () => {
  for (const type of ['CheckpointLoader', 'DiffusersLoader']) {
    const node = { type, widgets_values: ['a'] }
    assert.ok(isDeprecated(node) && !isStock(node))
    assert.equal(findParallelType(node), null)
  }
  assert.ok(!isDeprecated({ type: 'CheckpointLoaderSimple' }))
})

test('a conversion names what the stock loader has no place for, and removes its links', () => {
  const plan = { id: 4, type: 'ParallelDiT_Plan', outputs: [{ name: 'plan', links: [9] }] }
  const node = { ...unet(5, [1]), type: LOADER, widgets_values: ['a.safetensors', 'bf16', 3] }
  node.inputs = [{ name: 'plan', link: 9 }, widget('model_name', 8), widget('dtype'), widget('group')]
  const workflow = {
    id: 'root',
    nodes: [plan, node],
    links: [
      [9, 4, 0, 5, 0, 'PARALLEL_PLAN'],
      [8, 3, 0, 5, 1, 'COMBO']
    ]
  }
  assert.deepEqual(toStock(workflow).lost, ['weight_dtype bf16', 'group 3', 'plan'])
  assert.deepEqual(node.widgets_values, ['a.safetensors', 'default'])
  assert.deepEqual(workflow.links, [[8, 3, 0, 5, 0, 'COMBO']])
  assert.deepEqual(plan.outputs[0].links, [])
  assert.deepEqual([node.type, node.properties.cnr_id], ['UNETLoader', 'comfy-core'])
})

test('loaders of pickle files stay stock, and other nodes do not change', () => {
  const pickle = { ...unet(5, []), widgets_values: ['a.ckpt', 'default'] }
  assert.ok(isStock(pickle))
  assert.equal(findParallelType(pickle), null)
  assert.equal(findParallelType({ type: 'KSampler' }), null)
})

test('a parallel loader becomes the stock loader that it was, or one that offers its file', () => {
  const loader = (file, was) => ({
    type: LOADER,
    widgets_values: [file],
    properties: was && { [ORIGIN]: { type: was } }
  })
  const checkpoints = { exists: () => true, offers: (type) => type === 'CheckpointLoaderSimple' }
  assert.equal(findStockType(loader('a.safetensors', 'UNETLoader'), knows), 'UNETLoader')
  assert.equal(findStockType(loader('a.safetensors', 'UNETLoader'), checkpoints), 'CheckpointLoaderSimple')
  assert.equal(findStockType(loader('a.safetensors', 'UnetLoaderGGUF'), knows), 'UNETLoader')
  assert.equal(findStockType(loader('a.gguf', 'UNETLoader'), knows), 'UnetLoaderGGUF')
  assert.equal(findStockType(loader('a.gguf', 'UnetLoaderGGUFAdvanced'), knows), 'UnetLoaderGGUFAdvanced')
  assert.equal(findStockType(loader('a.safetensors', 'UnetLoaderGGUFAdvanced'), knows), 'UNETLoader')
  assert.equal(findStockType(loader('a.gguf'), { ...knows, exists: () => false }), null)
  assert.equal(findStockType(loader('a-diffusers-folder'), knows), null)
  assert.equal(findStockType({ ...loader('a.safetensors'), type: CHECKPOINT }, knows), 'CheckpointLoaderSimple')
  assert.equal(findStockType({ type: 'KSampler' }, knows), null)
})
